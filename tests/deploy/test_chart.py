"""The Helm chart: helm renders what Kubernetes takes, what the gateway reads, and no more than was asked for."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from egressproxy.admin.server import HEALTH
from egressproxy.cli.main import main
from egressproxy.cli.run import command as run_command
from egressproxy.kubeapi.kinds import CONFIGURED
from tests.deploy.tools import (
    CHART,
    EXAMPLES,
    ROOT,
    Object,
    gateway_container,
    helm,
    name_of,
    of_kind,
    one,
    pod_templates,
    rendered,
    schema_of,
    template,
)

#: The oldest that Chart.yaml takes, and the newest.
KUBERNETES = ("1.29", "1.35")
#: Groups that Kubernetes does not have itself: their schemas come with their CRDs.
GROUPS_OF_OTHERS = {
    "cilium.io", "egressproxy.io", "gateway.networking.k8s.io", "monitoring.coreos.com", "policy.networking.k8s.io",
}  # fmt: skip
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
#: Of what the chart passes on as it is.
PASSED_ON = {"requests", "limits"}
every_example = pytest.mark.parametrize("example", EXAMPLES, ids=name_of)


# ---- helm and Kubernetes


@pytest.mark.parametrize("mode", ["deployment", "daemonset", "sidecar"])
def test_helm_finds_nothing_to_mend(mode: str):
    done = helm("lint", "--strict", str(CHART), "--set", f"mode={mode}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("version", KUBERNETES)
@every_example
def test_every_object_is_what_the_schemas_of_kubernetes_ask_for(example: Path | None, version: str):
    for each in rendered(example):
        if each["apiVersion"].rpartition("/")[0] not in GROUPS_OF_OTHERS:
            schema_of(each, version).validate(each)


def test_an_unknown_field_is_found_by_the_schemas():
    deployment = copy.deepcopy(one("Deployment", rendered(None)))
    deployment["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(jsonschema.ValidationError, match="readynessProbe"):
        schema_of(deployment, KUBERNETES[0]).validate(deployment)


@every_example
def test_no_two_objects_have_one_name(example: Path | None):
    names = [
        (each["apiVersion"], each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        for each in rendered(example)
    ]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("replica: 3", "'replica' was unexpected"),
        ("service: {typ: NodePort}", "'typ' was unexpected"),
        ("mode: statefulset", "'statefulset' is not one of"),
        ("listeners: [{name: a, port: 80, protocol: HTTP, prot: HTTP}]", "'prot' was unexpected"),
        ("listeners: [{name: a, port: 80}]", "'protocol' is a required property"),
        ("workers: 0", "0 is less than the minimum"),
        ("metrics: {podMonitor: {label: x}}", "'label' was unexpected"),
        ("config: {policy: x}", "'policy' does not match any of the regexes"),
        ("livenessProbe: {period: 1}", "'period' was unexpected"),
        ("networkPolicy: {clients: {kind: Calico}}", "'Calico' is not one of"),
        ("image: {digest: sha256:1}", "does not match"),
    ],
)
def test_a_value_that_is_misspelt_is_refused_by_its_name(given: str, told: str):
    with pytest.raises(jsonschema.ValidationError, match=re.escape(told)):
        jsonschema.Draft7Validator(SCHEMA).validate(yaml.safe_load(given))


def test_helm_asks_the_schema():
    done = helm("template", "egressproxy", str(CHART), "--set", "replica=3")
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr
    assert "replica" in done.stderr


def test_every_object_of_ours_in_the_schema_is_closed():
    """What is open is what the chart passes on, or a map of names that the user gives."""

    def open_objects(value: object, at: str) -> Iterator[str]:
        if isinstance(value, dict):
            if "properties" in value and value.get("additionalProperties") is not False:
                yield at
            for name, each in value.items():
                yield from open_objects(each, f"{at}.{name}")

    assert list(open_objects(SCHEMA, "")) == []
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert SCHEMA["properties"].keys() - {"global", "enabled"} == values.keys()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("state.volume.persistentVolumeClaim.claimName=x", "state.volume: a claim is for one Pod"),
        ("source=files,gateway.kind=Object", "gateway.kind: Object is for a gateway that watches"),
        ("mode=sidecar,source=kubernetes", "mode: sidecar reads files"),
        ("hostNetwork=true", "hostNetwork is for mode: daemonset, and the mode is deployment"),
        ("mode=daemonset,autoscaling.enabled=true", "autoscaling is for mode: deployment"),
        ("source=files,gateway.create=false", "there is no configuration"),
        ("listeners=null", "listeners is empty"),
        ("networkPolicy.clients.enabled=true", "networkPolicy.clients.namespaces is empty"),
        ("networkPolicy.ingress.enabled=true,metrics.podMonitor.enabled=true", "metricsFrom is empty, so that nobody"),
        ("podDisruptionBudget.minAvailable=1", "podDisruptionBudget has minAvailable and maxUnavailable"),
        ("mode=sidecar,sidecar.listener=x", "sidecar.listener: no listener is called x"),
        ("config.gateway\\.yaml=x", "config: gateway.yaml is the file of the Gateway that the chart makes"),
    ],
)
def test_values_that_do_not_fit_together_are_refused_with_the_remedy(given: str, told: str):
    done = helm("template", "egressproxy", str(CHART), "--set", given)
    assert done.returncode != 0
    assert told in done.stderr


# ---- the gateway


@every_example
def test_the_gateway_takes_the_configuration_that_the_chart_writes(example: Path | None, tmp_path: Path):
    objects = rendered(example)
    maps = [each for each in of_kind("ConfigMap", objects) if any(name.endswith(".yaml") for name in each["data"])]
    if not maps:  # the Gateway is an object of the cluster
        (tmp_path / "gateway.yaml").write_text(
            yaml.safe_dump_all([one("Gateway", objects), one("GatewayClass", objects)]), encoding="utf-8"
        )
    for name, text in (item for each in maps for item in each["data"].items()):
        (tmp_path / name).write_text(text, encoding="utf-8")
    options: list[str] = []
    for argument in gateway_container(pod_templates(objects)[0])["args"]:
        if argument.startswith("--secret="):  # what the volume of the Secret will hold
            secret, _, folder = argument.removeprefix("--secret=").partition("=")
            here = tmp_path / "secrets" / folder.lstrip("/")
            here.mkdir(parents=True)
            (here / "token").write_text("sk-of-the-operator", encoding="utf-8")
            options.append(f"--secret={secret}={here}")
    done = CliRunner().invoke(main, ["check", "--strict", *options, str(tmp_path)])
    assert done.exit_code == 0, done.output
    ports = {int(port) for port in re.findall(r"^listener .* on \S+:(\d+)", done.output, re.MULTILINE)}
    container = gateway_container(pod_templates(objects)[0])
    assert ports == {each["containerPort"] for each in container["ports"] if each.get("name") != "metrics"}


def test_the_first_three_lines_of_the_page_allow_what_they_say(tmp_path: Path):
    """The Gateway of the chart's own values with the policy of the second line."""
    (tmp_path / "gateway.yaml").write_text(one("ConfigMap", rendered(None))["data"]["gateway.yaml"], encoding="utf-8")
    shutil.copy(ROOT / "deploy" / "example-policy.yaml", tmp_path)
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    assert "kubectl apply -f deploy/example-policy.yaml" in page
    assert CliRunner().invoke(main, ["check", "--strict", str(tmp_path)]).exit_code == 0
    for host, is_allowed in (("pypi.org", True), ("example.com", False)):
        done = CliRunner().invoke(main, ["explain", "CONNECT", f"{host}:443", "--no-dns", "--config", str(tmp_path)])
        assert done.output.startswith("allowed " if is_allowed else "denied "), done.output


@every_example
def test_the_command_line_is_one_that_the_gateway_takes(example: Path | None, tmp_path: Path):
    for pod in pod_templates(rendered(example)):
        container = gateway_container(pod)
        verb, *options = container["args"]
        assert verb == "run"
        mounted = {each["mountPath"] for each in container.get("volumeMounts", ())}
        here = [_on_this_machine(option, mounted, tmp_path) for option in options]
        # The command keeps the option for its help that it is first asked for: that of the program.
        with click.Context(run_command, info_name="run", help_option_names=["-h", "--help"]) as parent:
            run_command.make_context("run", here, parent=parent)


def _on_this_machine(option: str, mounted: set[str], folder: Path) -> str:
    """The option with a file or folder that is here in place of one that a volume has in the Pod."""
    for path in re.findall(r"=(/[\w./-]+)$", option):
        assert {path, path.rpartition("/")[0]} & mounted, option
        here = folder / path.lstrip("/")
        (here if path in mounted else here.parent).mkdir(parents=True, exist_ok=True)
        if path not in mounted:
            here.write_text("0123456789abcdef" * 4, encoding="utf-8")
        return option.replace(f"={path}", f"={here}")
    return option.replace("$(POD_NAMESPACE)", "egressproxy-system")  # as the kubelet does


@every_example
def test_probes_ask_what_is_answered_where_metrics_are(example: Path | None):
    for pod in pod_templates(rendered(example)):
        container = gateway_container(pod)
        (metrics,) = [each["containerPort"] for each in container["ports"] if each.get("name") == "metrics"]
        (at,) = [each for each in container["args"] if each.startswith("--metrics=")]
        assert at.endswith(f":{metrics}")
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = container[probe]["httpGet"]
            assert (asked["path"] in HEALTH, asked["port"]) == (True, metrics), probe
        assert container["livenessProbe"]["httpGet"]["path"] == "/livez"  # an overloaded gateway is not killed
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


@every_example
def test_a_pod_has_the_time_to_drain(example: Path | None):
    for pod in pod_templates(rendered(example)):
        given = dict(
            each.removeprefix("--").split("=", 1)
            for each in gateway_container(pod)["args"]
            if each.startswith("--drain-")
        )
        needed = sum(float(each) for each in given.values())
        assert pod["spec"]["terminationGracePeriodSeconds"] > needed


# ---- security


@every_example
def test_pods_are_what_the_restricted_standard_admits(example: Path | None):
    for pod in pod_templates(rendered(example)):
        spec = pod["spec"]
        if example is not None and example.stem == "daemonset-host":  # which says so
            assert spec["hostNetwork"]
            continue
        of_pod = spec["securityContext"]
        assert (of_pod["runAsNonRoot"], of_pod["seccompProfile"]["type"]) == (True, "RuntimeDefault")
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False, container["name"]
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert own["readOnlyRootFilesystem"] is True  # beyond the standard
            assert not [each for each in container.get("ports", ()) if "hostPort" in each]
        for volume in spec["volumes"]:
            assert volume.keys() - {"name"} <= {"configMap", "emptyDir", "projected", "secret", "persistentVolumeClaim"}


def test_a_sidecar_is_restricted_in_whatever_pod_it_is():
    pod = pod_templates(rendered(CHART / "ci" / "sidecar.yaml"))[0]
    own = gateway_container(pod)["securityContext"]
    assert (own["runAsNonRoot"], own["runAsUser"], own["seccompProfile"]) == (True, 65532, {"type": "RuntimeDefault"})
    assert "fsGroup" not in own


def test_only_a_gateway_that_watches_has_a_token_of_the_api_server():
    tokens = {
        name: pod_templates(rendered(CHART / "ci" / f"{name}.yaml"))[0]["spec"]["automountServiceAccountToken"]
        for name in ("standalone", "files", "sidecar")
    }
    assert tokens == {"standalone": True, "files": False, "sidecar": False}


def test_a_gateway_that_is_an_object_has_a_protocol_that_the_crd_of_gateway_api_takes():
    (made,) = of_kind("Gateway", template("--set", "gateway.kind=Object"))
    (listener,) = made["spec"]["listeners"]
    assert listener == {"name": "forward", "port": 3128, "protocol": "egressproxy.io/forwardproxy"}


# ---- rights


def rights(objects: list[Object], kind: str) -> dict[tuple[str, str], set[str]]:
    """The verbs of each group and resource in the roles of a kind, whatever their namespaces."""
    found: dict[tuple[str, str], set[str]] = {}
    for role in of_kind(kind, objects):
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def test_every_kind_of_a_configuration_may_be_watched_and_no_secret_of_the_whole_cluster():
    objects = template("--set", "rbac.pods=true")
    of_cluster, of_namespaces = rights(objects, "ClusterRole"), rights(objects, "Role")
    by_reference = {("", "secrets"), ("", "configmaps")}
    kinds = {(kind.group, kind.plural) for kind in CONFIGURED} - {("", "serviceaccounts")}  # a Pod names its own
    read = {name for name, verbs in of_cluster.items() if {"get", "list", "watch"} <= verbs}
    assert read == kinds - by_reference
    assert by_reference <= of_namespaces.keys()
    assert {role["metadata"]["namespace"] for role in of_kind("Role", objects)} == {"egressproxy-system"}
    written = {name for name, verbs in of_cluster.items() if verbs - {"get", "list", "watch"}}
    others = {("events.k8s.io", "events"), ("coordination.k8s.io", "leases")}  # the Leases of our classes
    assert {name for name in written if not name[1].endswith("/status")} == others
    assert {(group, resource.removesuffix("/status")) for group, resource in written} <= kinds | others


def granted(objects: list[Object]) -> set[tuple[str, str, str, str, str]]:
    """Namespace, group, resource, name and verb of each right; "" for the whole cluster, and for every name."""
    return {
        (role["metadata"].get("namespace", ""), group, resource, name, verb)
        for role in [*of_kind("ClusterRole", objects), *of_kind("Role", objects)]
        if not role["metadata"]["name"].endswith("-references")  # which Secrets: the values say
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("namespaces", [[], ["agents", "builds"]])
def test_rights_are_those_that_the_gateway_says_it_needs(namespaces: list[str]):
    access = pytest.importorskip("egressproxy.kubernetes.access")
    home = "egressproxy-system"
    words = ["--set", "rbac.pods=true"]
    if namespaces:
        words += ["--set", f"watchNamespaces={{{','.join(namespaces)}}},rbac.gatewayClasses={{more}}"]
        namespaces = [*namespaces, home]
    classes = ("egressproxy", "more") if namespaces else ("egressproxy",)
    needs = access.needed(access.Needs(namespaces=tuple(namespaces), published=(home, "egressproxy"), classes=classes))
    wanted = {
        (namespace, rule.group, resource, name, verb)
        for namespace, rules in needs.items()
        for rule in rules
        for resource in rule.resources
        for name in rule.names or [""]
        for verb in rule.verbs
    }
    assert granted(template(*words)) == wanted


def test_rights_for_some_namespaces_reach_no_other():
    objects = rendered(CHART / "ci" / "namespaces.yaml")
    whole = {kind.plural for kind in CONFIGURED if not kind.is_namespaced} | {"leases"}
    assert {resource.removesuffix("/status") for _, resource in rights(objects, "ClusterRole")} == whole
    roles = {(role["metadata"]["namespace"], role["metadata"]["name"]) for role in of_kind("Role", objects)}
    assert {namespace for namespace, name in roles if name == "egress"} == {"agents", "builds", "egressproxy-system"}
    assert {namespace for namespace, name in roles if name == "egress-references"} == {
        "agents", "builds", "certificates", "egressproxy-system",
    }  # fmt: skip
    assert {(namespace, name) for namespace, name in roles if name in ("egress-own", "egress-events")} == {
        ("egressproxy-system", "egress-own"),
        ("default", "egress-events"),  # about objects without a namespace
    }
    (secrets,) = {
        tuple(rule["resourceNames"])
        for role in of_kind("Role", objects)
        for rule in role["rules"]
        if "secrets" in rule["resources"]
    }
    assert secrets == ("openai-api-key",)
    watched = [each for each in gateway_container(pod_templates(objects)[0])["args"] if "--watch-namespace" in each]
    assert watched == [f"--watch-namespace={name}" for name in ("agents", "builds", "egressproxy-system")]
    assert {"--gateway-namespace=egressproxy-system", "--lease-namespace=leases"} <= {
        *gateway_container(pod_templates(objects)[0])["args"]
    }


def test_of_leases_those_of_our_classes_are_permitted_alone():
    words = ("--set", "gateway.className=internal", "--set", "rbac.gatewayClasses={other}")
    objects = template(*words)
    (leases,) = [
        rule for role in of_kind("ClusterRole", objects) for rule in role["rules"] if "leases" in rule["resources"]
    ]
    assert leases["resourceNames"] == [
        f"egressproxy-{name}{more}" for name in ("other", "internal") for more in ("", "-namespaces")
    ]
    assert not [rule for role in of_kind("Role", objects) for rule in role["rules"] if "leases" in rule["resources"]]


def test_every_role_is_bound_to_the_gateway_alone():
    for example in (None, CHART / "ci" / "namespaces.yaml"):
        objects = rendered(example)
        account = one("ServiceAccount", objects)["metadata"]
        for kind in ("Role", "ClusterRole"):
            roles = {(each["metadata"].get("namespace"), each["metadata"]["name"]) for each in of_kind(kind, objects)}
            bound = {
                (each["metadata"].get("namespace"), each["roleRef"]["name"])
                for each in of_kind(f"{kind}Binding", objects)
            }
            assert roles == bound
            for each in of_kind(f"{kind}Binding", objects):
                assert each["subjects"] == [
                    {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
                ]


# ---- ports and policies


def test_the_service_has_a_port_for_each_listener():
    service = one("Service", [each for each in rendered(CHART / "ci/standalone.yaml") if "-metrics" not in str(each)])
    assert [(each["name"], each["port"], each["targetPort"]) for each in service["spec"]["ports"]] == [
        ("forward", 3128, 3128),
        ("socks", 1080, 1080),
        ("names", 53, 15353),
        ("names-udp", 53, 15353),
        ("http", 80, 8080),
    ]
    protocols = [(each["protocol"], each.get("appProtocol")) for each in service["spec"]["ports"]]
    assert protocols == [("TCP", "tcp")] * 3 + [("UDP", None), ("TCP", "http")]


def test_a_service_of_a_daemonset_stays_on_the_node():
    assert one("Service", rendered(CHART / "ci/daemonset.yaml"))["spec"]["internalTrafficPolicy"] == "Local"
    assert of_kind("Service", rendered(CHART / "ci/daemonset-host.yaml")) == []


def test_nobody_scrapes_who_is_not_named():
    words = ["--set", "networkPolicy.ingress.enabled=true,metrics.port=15990"]
    assert "15990" not in str(one("NetworkPolicy", template(*words))["spec"])
    words += ["--set", "networkPolicy.ingress.metricsFrom[0].podSelector.matchLabels.a=b"]
    _, scrapes = one("NetworkPolicy", template(*words))["spec"]["ingress"]
    assert scrapes == {
        "from": [{"podSelector": {"matchLabels": {"a": "b"}}}],
        "ports": [{"protocol": "TCP", "port": 15990}],
    }


def test_the_only_way_out_leads_to_the_gateways_pods():
    """The selectors of the policies fit the labels of the Pods, and each port is one that a listener has."""
    objects = rendered(CHART / "ci/namespaces.yaml")
    (pod,) = pod_templates(objects)
    policies = [each for each in of_kind("NetworkPolicy", objects) if each["metadata"]["name"].endswith("only-way-out")]
    assert {each["metadata"]["namespace"] for each in policies} == {"agents", "builds"}
    for policy in policies:
        assert policy["spec"]["podSelector"] == {}
        gateway, dns, own = policy["spec"]["egress"]
        selected = gateway["to"][0]["podSelector"]["matchLabels"]
        assert selected.items() <= pod["metadata"]["labels"].items()
        assert gateway["to"][0]["namespaceSelector"]["matchLabels"] == {
            "kubernetes.io/metadata.name": "egressproxy-system"
        }
        assert [each["port"] for each in gateway["ports"]] == [3128]
        assert {each["port"] for each in dns["ports"]} == {53}
        assert own == {"to": [{"podSelector": {}}]}


def test_policies_for_labelled_namespaces_end_with_a_denial():
    admin = one("AdminNetworkPolicy", rendered(CHART / "ci/files.yaml"))["spec"]
    assert admin["subject"]["namespaces"]["matchLabels"] == {"egressproxy.io/egress": "gateway-only"}
    assert [each["action"] for each in admin["egress"]] == ["Allow", "Deny"]  # without DNS
    assert admin["egress"][-1]["to"] == [{"networks": ["0.0.0.0/0", "::/0"]}]
    cilium = one("CiliumClusterwideNetworkPolicy", rendered(CHART / "ci/standalone.yaml"))["spec"]
    assert cilium["endpointSelector"]["matchLabels"] == {
        "k8s:io.cilium.k8s.namespace.labels.egressproxy.io/egress": "gateway-only"
    }
    ports = cilium["egress"][0]["toPorts"][0]["ports"]
    assert [each["port"] for each in ports] == ["3128", "1080", "15353", "8080"]
    assert [each["protocol"] for each in ports] == ["TCP", "TCP", "ANY", "TCP"]


# ---- sidecars


def test_a_chart_that_depends_on_this_one_puts_the_sidecar_into_its_own_pods(tmp_path: Path):
    (tmp_path / "templates").mkdir()
    shutil.copytree(CHART, tmp_path / "charts" / "egressproxy")
    (tmp_path / "Chart.yaml").write_text(
        "{apiVersion: v2, name: agent, version: 1.0.0, dependencies: [{name: egressproxy, version: 0.1.0}]}",
        encoding="utf-8",
    )
    (tmp_path / "values.yaml").write_text("egressproxy: {mode: sidecar}", encoding="utf-8")
    (tmp_path / "templates" / "job.yaml").write_text(_block("kind: Job"), encoding="utf-8")
    objects = template(chart=tmp_path)
    (pod,) = pod_templates(objects)
    sidecar = gateway_container(pod)
    assert [each["name"] for each in pod["spec"]["initContainers"]] == ["egressproxy"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["startupProbe"]["httpGet"]["path"] == "/readyz"  # what comes after it finds it ready
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    assert {each["name"] for each in sidecar["volumeMounts"]} <= volumes.keys()
    named = {each["configMap"]["name"] for each in volumes["egressproxy-config"]["projected"]["sources"]}
    assert named <= {each["metadata"]["name"] for each in of_kind("ConfigMap", objects)}
    variables = {each["name"]: each["value"] for each in pod["spec"]["containers"][0]["env"]}
    assert variables["https_proxy"] == variables["HTTP_PROXY"] == "http://127.0.0.1:3128"
    assert pod["metadata"]["labels"]["egressproxy.io/sidecar"] == "true"


def test_a_sidecar_listens_on_loopback_alone():
    for name in ("sidecar", "sidecar-job"):
        objects = rendered(CHART / "ci" / f"{name}.yaml")
        assert "--bind=127.0.0.1" in gateway_container(pod_templates(objects)[0])["args"]
        (data,) = [each["data"] for each in of_kind("ConfigMap", objects) if "gateway.yaml" in each["data"]]
        addresses = yaml.safe_load(data["gateway.yaml"])["spec"]["addresses"]
        assert addresses == [{"type": "IPAddress", "value": "127.0.0.1"}]


# ---- documents


def _page() -> str:
    return (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")


def _block(having: str) -> str:
    """The one block of the page on Kubernetes that has these words."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", _page(), re.MULTILINE | re.DOTALL)
    (found,) = [each for each in blocks if having in each]
    return found


def test_the_values_in_the_documentation_are_values_of_the_chart():
    blocks = re.findall(r"^```yaml\n# values.yaml\n(.*?)^```$", _page(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        jsonschema.Draft7Validator(SCHEMA).validate(yaml.safe_load(block))


def test_every_value_that_a_page_names_is_there():
    """`networkPolicy.clients`, `rbac.secrets.names`: where the first word is a value, so are the others."""
    text = _page() + (CHART / "README.md").read_text(encoding="utf-8")
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    for name in set(re.findall(r"`([a-z]\w+(?:\.\w+)+)(?:: [^`]*)?`", text)):
        first, *others = name.split(".")
        place = values.get(first)
        for each in others if place is not None and "md" not in others else ():
            assert isinstance(place, dict), name
            assert each in place or not place or each in PASSED_ON, name
            place = place.get(each, {})


def test_the_readme_names_every_value():
    readme = (CHART / "README.md").read_text(encoding="utf-8")
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    named = set(re.findall(r"`([A-Za-z.]+)`", readme))
    assert values.keys() - {each.partition(".")[0] for each in named} == set()


def test_the_version_is_that_of_the_gateway():
    from egressproxy import __version__

    assert yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"] == __version__
