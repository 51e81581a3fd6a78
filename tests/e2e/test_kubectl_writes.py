"""A real kubectl that writes: a control plane without a cluster."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.test_kubectl import command
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S
from tests.support.writing import delete_all

GATEWAYS = "/apis/gateway.networking.k8s.io/v1/namespaces/agents/gateways"


class Cluster:
    def __init__(self, gateway: GatewayProcess, folder: Path, home: Path) -> None:
        self.gateway = gateway
        self.folder = folder
        self.home = home

    def run(self, *arguments: str, stdin: Any = None) -> subprocess.CompletedProcess[str]:
        """kubectl with objects on standard input."""
        program, environment = command(self.gateway, self.home, *arguments)
        text = yaml.safe_dump_all(stdin) if stdin is not None else None
        return subprocess.run(program, env=environment, input=text, capture_output=True, text=True, timeout=WAIT_S)

    def kubectl(self, *arguments: str, stdin: Any = None) -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def kept(self) -> list[str]:
        return sorted(name for name in os.listdir(self.folder) if not name.startswith("."))


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    state = folder / "state"
    gateway = GatewayProcess(
        folder / "gateway", [m.config_map("of-a-file", {"a": "b"})],
        arguments=["--state-dir", str(state), "--api-writes"], must_be_ready=False,
    )  # fmt: skip
    with gateway:
        yield Cluster(gateway, state, folder)


@pytest.fixture(scope="module")
def of_all_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def cluster(of_all_tests: Cluster) -> Iterator[Cluster]:
    """One for all tests; what a test has written is deleted behind it."""
    yield of_all_tests
    delete_all(of_all_tests.gateway, of_all_tests.folder)


def egress(port: int, **more: Any) -> m.Manifest:
    return m.gateway(m.forward_listener(port), name="egress", **more)


def request(cluster: Cluster, method: str, path: str, body: bytes = b"{}", **fields: str) -> tuple[int, dict[str, Any]]:
    made = urllib.request.Request(f"http://127.0.0.1:{cluster.gateway.admin_port}{path}", body, fields, method=method)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(made, timeout=WAIT_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_what_is_applied_is_in_service_when_kubectl_returns_and_after_a_restart(cluster: Cluster):
    port = free_port()
    told = cluster.kubectl(
        "apply", "-f", "-", stdin=[egress(port), m.policy(["a.example"]), m.secret("key", {"t": "CANARY"})]
    )
    assert told.count("created") == 3
    assert cluster.gateway.admin("/readyz")[0] == 200
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": f"http://127.0.0.1:{port}"}))
    with pytest.raises(urllib.error.HTTPError) as denied:
        opener.open("http://other.example/", timeout=WAIT_S)
    assert denied.value.code == 403
    assert cluster.kept() == [
        "egresspolicy.egressproxy.io_agents_default.yaml",
        "gateway.gateway.networking.k8s.io_agents_egress.yaml",
        "secret_agents_key.yaml",
    ]
    assert all(stat.S_IMODE((cluster.folder / name).stat().st_mode) == 0o600 for name in cluster.kept())
    assert "CANARY" not in cluster.gateway.stderr
    before = cluster.get("gateway", "egress", "-n", "agents")
    assert cluster.gateway.stop() == 0
    cluster.gateway.start()
    after = cluster.get("gateway", "egress", "-n", "agents")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert {each["status"] for each in after["status"]["conditions"]} == {"True"}


def test_applied_again_nothing_changes_and_a_change_is_applied(cluster: Cluster):
    port, other = free_port(), free_port()
    cluster.kubectl("apply", "-f", "-", stdin=[egress(port)])
    version = cluster.get("gw", "egress", "-n", "agents")["metadata"]["resourceVersion"]
    assert "unchanged" in cluster.kubectl("apply", "-f", "-", stdin=[egress(port)])
    assert "configured" in cluster.kubectl("apply", "-f", "-", stdin=[egress(other)])
    changed = cluster.get("gw", "egress", "-n", "agents")
    assert changed["spec"]["listeners"][0]["port"] == other
    assert changed["metadata"]["generation"] == 2
    assert int(changed["metadata"]["resourceVersion"]) > int(version)
    assert {each["observedGeneration"] for each in changed["status"]["conditions"]} == {2}


def test_a_kind_that_there_is_not_is_named_and_the_rest_is_applied(cluster: Cluster):
    misspelt = {**m.policy(["a.example"]), "kind": "EgresPolicy"}
    workload = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "app", "namespace": "agents"}}
    done = cluster.run("apply", "-f", "-", stdin=[misspelt, workload, m.policy(["a.example"])])
    assert done.returncode == 1
    assert 'no matches for kind "EgresPolicy"' in done.stderr
    assert 'no matches for kind "Deployment"' in done.stderr
    assert cluster.kept() == ["egresspolicy.egressproxy.io_agents_default.yaml"]


def test_server_side_apply_tells_conflicts_and_can_be_forced(cluster: Cluster):
    mine, other = egress(free_port()), egress(free_port())
    cluster.kubectl("apply", "--server-side", "--field-manager", "mine", "-f", "-", stdin=[mine])
    refused = cluster.run("apply", "--server-side", "--field-manager", "other", "-f", "-", stdin=[other])
    assert refused.returncode == 1
    assert 'conflict with "mine"' in refused.stderr
    cluster.kubectl("apply", "--server-side", "--field-manager", "other", "--force-conflicts", "-f", "-", stdin=[other])
    assert cluster.get("gw", "egress", "-n", "agents")["spec"] == other["spec"]


def test_patches_of_every_kind(cluster: Cluster):
    cluster.kubectl("apply", "-f", "-", stdin=[egress(free_port())])
    patch = ("patch", "gateway", "egress", "-n", "agents", "--type")
    cluster.kubectl(*patch, "merge", "-p", '{"metadata": {"labels": {"a": "b"}}}')
    ports = [free_port(), free_port()]
    path = "/spec/listeners/0/port"
    cluster.kubectl(*patch, "json", "-p", json.dumps([{"op": "replace", "path": path, "value": ports[0]}]))
    extra = {"spec": {"listeners": [{"name": "extra", "port": ports[1], "protocol": "HTTP"}]}}
    content_type = {"Content-Type": "application/strategic-merge-patch+json"}
    assert request(cluster, "PATCH", f"{GATEWAYS}/egress", json.dumps(extra).encode(), **content_type)[0] == 200
    made = cluster.get("gw", "egress", "-n", "agents")
    assert made["metadata"]["labels"] == {"a": "b"}
    assert [each["port"] for each in made["spec"]["listeners"]] == ports


def test_what_is_refused_leaves_nothing_behind(cluster: Cluster):
    invalid = cluster.run("create", "--validate=false", "-f", "-", stdin=[egress(99999)])
    assert invalid.stderr.startswith('The Gateway "egress" is invalid: spec.listeners[0].port: ')
    assert "99999 is more than 65535" in invalid.stderr
    taken = cluster.run("create", "-f", "-", stdin=[egress(cluster.gateway.admin_port)])
    assert taken.returncode == 1
    assert cluster.kept() == []
    assert cluster.kubectl("get", "gw", "-A", "-o", "name") == ""


def test_what_is_taken_and_not_served_as_written_is_a_warning_for_each_problem(cluster: Cluster):
    gateway = egress(free_port())
    gateway["spec"]["listeners"].append({"name": "odd", "port": free_port(), "protocol": "HTPS"})
    told = cluster.run("apply", "-f", "-", stdin=[gateway])
    assert told.returncode == 0
    (warning,) = (line for line in told.stderr.splitlines() if line.startswith("Warning: "))
    assert warning.startswith("Warning: spec.listeners[1]: listener odd: Accepted is False (UnsupportedProtocol): ")
    assert warning.endswith("did you mean HTTPS?")
    policy = m.policy(
        ["a.example"],
        limits={
            "store": {"type": "Memory", "secretRef": {"name": "s"}},
        },
    )
    policy["spec"]["dns"] = {"servers": ["https://dns.example/q", "10.0.0.53"]}
    policy["spec"]["targetRefs"][0]["name"] = "egress"
    for how in ("--dry-run=server", "--dry-run=none"):
        told = cluster.run("apply", how, "-f", "-", stdin=[policy])
        assert told.returncode == 0
        assert "limits.store do nothing with type Memory" in told.stderr
        assert "dns.servers" in told.stderr
    assert cluster.run("apply", "-f", "-", stdin=[m.config_map("quiet", {"a": "b"})]).stderr == ""


def test_a_dry_run_changes_nothing(cluster: Cluster):
    assert "dry run" in cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=[egress(free_port())])
    assert (
        "is invalid"
        in cluster.run("create", "--dry-run=server", "--validate=false", "-f", "-", stdin=[egress(0)]).stderr
    )
    assert cluster.kept() == []


def test_an_object_of_a_file_is_read_only_and_kubectl_says_where_it_stands(cluster: Cluster):
    refused = cluster.run("label", "configmap", "of-a-file", "-n", "agents", "a=b")
    assert refused.returncode == 1
    assert "manifests.yaml:1" in refused.stderr
    assert "forbidden" in cluster.run("delete", "configmap", "of-a-file", "-n", "agents").stderr


def test_delete_takes_an_object_out_of_service(cluster: Cluster):
    cluster.kubectl("apply", "-f", "-", stdin=[egress(free_port())])
    assert "deleted" in cluster.kubectl("delete", "gateway", "egress", "-n", "agents", "--timeout", "30s")
    assert cluster.kept() == []
    assert cluster.gateway.admin("/readyz")[0] == 503


@pytest.mark.parametrize(
    ("method", "path", "fields", "status"),
    [
        ("POST", GATEWAYS, {"Content-Type": "application/json", "Origin": "http://evil.example"}, 403),
        ("POST", GATEWAYS, {"Content-Type": "text/plain"}, 415),
        ("POST", GATEWAYS, {"Content-Type": "application/json", "Host": "evil.example"}, 403),
        ("POST", GATEWAYS + "/x", {"Content-Type": "application/json"}, 405),
        ("PUT", GATEWAYS, {"Content-Type": "application/json"}, 405),
        ("PUT", GATEWAYS + "/x/status", {"Content-Type": "application/json"}, 405),
        ("DELETE", GATEWAYS, {"Content-Type": "application/json"}, 405),
        ("PATCH", GATEWAYS + "/x", {"Content-Type": "application/json"}, 415),
        ("PATCH", GATEWAYS + "/x", {"Content-Type": "application/apply-patch+yaml"}, 400),
        ("POST", GATEWAYS + "?dryRun=Some", {"Content-Type": "application/json"}, 400),
        ("POST", GATEWAYS + "?unknown=1", {"Content-Type": "application/json"}, 400),
        ("PUT", GATEWAYS + "/x?force=true", {"Content-Type": "application/json"}, 422),
        ("POST", "/api/v1/namespaces/agents/events", {"Content-Type": "application/json"}, 405),
        ("POST", "/apis/nope/v1/things", {"Content-Type": "application/json"}, 404),
    ],
)
def test_what_cannot_be_asked_for_is_refused_as_kubernetes_would(
    cluster: Cluster, method: str, path: str, fields: dict[str, str], status: int
):
    code, body = request(cluster, method, path, **fields)
    assert (code, body["kind"]) == (status, "Status")


def test_without_api_writes_nothing_can_be_written_and_the_state_is_served(tmp_path: Path):
    with running(tmp_path) as cluster:
        cluster.kubectl("apply", "-f", "-", stdin=[egress(free_port())])
    again = GatewayProcess(tmp_path / "again", [m.config_map("a", {})], arguments=["--state-dir", str(cluster.folder)])
    with again:
        assert json.loads(again.admin(f"{GATEWAYS}/egress")[1])["metadata"]["name"] == "egress"
        assert request(Cluster(again, cluster.folder, tmp_path), "DELETE", f"{GATEWAYS}/egress")[0] == 405


def test_a_state_dir_has_one_process(cluster: Cluster, tmp_path: Path):
    with pytest.raises(RuntimeError, match="another process has it"):
        GatewayProcess(
            tmp_path / "second", [m.config_map("a", {})], arguments=["--state-dir", str(cluster.folder)]
        ).start()


def test_core_objects_are_created_by_arguments(cluster: Cluster):
    cluster.kubectl("create", "namespace", "team-a")
    cluster.kubectl("create", "configmap", "values", "-n", "team-a", "--from-literal", "a=b")
    cluster.kubectl("create", "secret", "generic", "key", "-n", "team-a", "--from-literal", "token=CANARY")
    cluster.kubectl("create", "serviceaccount", "robot", "-n", "team-a")
    assert cluster.get("cm", "values", "-n", "team-a")["data"] == {"a": "b"}
    assert list(cluster.get("secret", "key", "-n", "team-a")["data"]) == ["token"]
    assert yaml.safe_load((cluster.folder / "secret_team-a_key.yaml").read_text())["data"] == {"token": "Q0FOQVJZ"}


def test_a_deletion_that_is_tried_deletes_nothing(cluster: Cluster):
    cluster.kubectl("create", "configmap", "kept", "-n", "agents", "--from-literal", "a=b")
    assert "dry run" in cluster.kubectl("delete", "configmap", "kept", "-n", "agents", "--dry-run=server")
    assert cluster.get("cm", "kept", "-n", "agents")["data"] == {"a": "b"}
    for options in ({"dryRun": ["Some"]}, {"dryRun": "All"}, {"dryRun": ["All", "All"]}):
        path = "/api/v1/namespaces/agents/configmaps/kept"
        body = json.dumps(options).encode()
        assert request(cluster, "DELETE", path, body, **{"Content-Type": "application/json"})[0] == 400
    assert cluster.get("cm", "kept", "-n", "agents")["data"] == {"a": "b"}
