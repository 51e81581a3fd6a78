"""Files to resources: every problem with its place, and sets as a whole or not at all."""

import base64
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from egressproxy.config.reading.load import ResourceSet, load, load_text
from egressproxy.config.reading.problems import ConfigError, Problem, Severity
from egressproxy.config.resources.core import Namespace, Secret
from egressproxy.config.resources.gateway import Gateway, GatewayClass
from egressproxy.config.resources.meta import without_nulls
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.config.resources.routes import HttpRoute

POLICY = """apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: bad}
spec:
"""
TARGET = "  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}]\n"
NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: agents}\n"
ROUTE = """apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r, namespace: agents}
spec:
"""


def problems(text: str) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        load_text(text, "conf.yaml")
    return caught.value.problems


def problem(text: str) -> Problem:
    (only,) = problems(text)
    return only


def folder_with(path: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (path / name.replace("__", ".")).write_bytes(data)
    return path


# --- what is wrong, and where ----------------------------------------------------------------------------------------

BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)

#: What is written, and (line, column, field path, part of the message, part of the remedy) of each problem.
BAD: dict[str, tuple[str | bytes, list[tuple[int, int, str, str, str]]]] = {
    "syntax": ("a: [1", [(1, 6, "", "not YAML", "brackets")]),
    "unknown field": (
        POLICY + TARGET + "  destination: {}\n",
        [(6, 3, "spec.destination", "unknown field destination", "did you mean destinations?")],
    ),
    "unknown field where there is one": (
        POLICY + TARGET + "  addresses: {only: [{cidrs: [10.0.0.0/8], hostnames: [a.test]}]}\n",
        [(6, 44, "spec.addresses.only[0].hostnames", "unknown field hostnames", "the only field here is cidrs")],
    ),
    "unknown field without a near one": (
        POLICY + TARGET + "  polcy: {}\n",
        [(6, 3, "spec.polcy", "unknown field polcy", "known fields here are addresses, destinations")],
    ),
    "text for a port": (
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: bad}\nspec:\n"
        '  gatewayClassName: egressproxy\n  listeners: [{name: x, port: "eighty", protocol: HTTP}]\n',
        [(6, 31, "spec.listeners[0].port", "eighty is not a whole number", "decimal digits")],
    ),
    "duplicate key": (
        POLICY + TARGET + "  destinations:\n    allow: [{hostnames: [a.test]}]\n    allow: [{hostnames: [b.test]}]\n",
        [(8, 5, "", "the key allow stands twice, first on line 7", "keep one")],
    ),
    "truncated": (POLICY + TARGET + "  destinations:\n    allow: [{hostna", [(7, 20, "", "not YAML", "brackets")]),
    "object tag": ("!!python/object/apply:os.system [echo]\n", [(1, 1, "", "the tag !!python/object", "plain values")]),
    "alias bomb": (BOMB, [(0, 0, "", "aliases multiply", "write the values out")]),
    "binary": (bytes(range(256)) * 64, [(1, 1, "", "binary", "UTF-8")]),
    "utf-16": ((POLICY + TARGET).encode("utf-16"), [(1, 1, "", "UTF-16", "UTF-8")]),
    "prefix too long": (
        POLICY + TARGET + "  destinations: {allow: [{cidrs: [10.0.0.0/33]}]}\n",
        [(6, 35, "spec.destinations.allow[0].cidrs[0]", "the prefix is longer than the 32 bits", "write /32 or less")],
    ),
    "prefix too long, of IPv6": (
        POLICY + TARGET + '  addresses: {only: [{cidrs: ["2001:db8::/129"]}]}\n',
        [(6, 31, "spec.addresses.only[0].cidrs[0]", "longer than the 128 bits", "write /128 or less")],
    ),
    "wildcard in dns.hosts": (
        POLICY + TARGET + '  dns: {hosts: {"*.a.test": [192.0.2.1]}}\n',
        [(6, 17, 'spec.dns.hosts["*.a.test"]', "*.a.test: a wildcard is not possible here", "write each name in full")],
    ),
    "prefix missing": (
        POLICY + TARGET + '  destinations: {allow: [{cidrs: ["10.0.0.0/"]}]}\n',
        [(6, 35, "spec.destinations.allow[0].cidrs[0]", "10.0.0.0/: not a network", "10.0.0.0/8")],
    ),
    "host bits": (
        POLICY + TARGET + "  destinations: {allow: [{cidrs: [10.0.0.1/8]}]}\n",
        [(6, 35, "spec.destinations.allow[0].cidrs[0]", "bits set beyond the prefix", "write 10.0.0.0/8")],
    ),
    "everything": (
        POLICY + TARGET + '  destinations: {allow: [{hostnames: ["*"]}]}\n',
        [(6, 39, "spec.destinations.allow[0].hostnames[0]", "*: a wildcard", "mode: Open")],
    ),
    "half a label": (
        POLICY + TARGET + '  destinations: {allow: [{hostnames: ["*test", "d*.test"]}]}\n',
        [
            (6, 39, "spec.destinations.allow[0].hostnames[0]", "*test: a wildcard", "write *.test"),
            (6, 48, "spec.destinations.allow[0].hostnames[1]", "d*.test: a wildcard", "write *.test"),
        ],
    ),
    "Norway and base 60": (
        POLICY + TARGET + "  destinations: {allow: [{hostnames: [no], ports: [22:22]}]}\n",
        [
            (6, 39, "spec.destinations.allow[0].hostnames[0]", "no is a truth value, not text", 'quote it: "no"'),
            (6, 52, "spec.destinations.allow[0].ports[0]", "22:22 is not a whole number", "base 60"),
        ],
    ),
    "negative timeout": (
        POLICY + TARGET + '  traffic: {timeouts: {connect: "-1s"}}\n',
        [(6, 33, "spec.traffic.timeouts.connect", "-1s: a duration cannot be negative", "0s")],
    ),
    "no unit": (
        POLICY + TARGET + "  traffic: {timeouts: {connect: 5}}\n",
        [(6, 33, "spec.traffic.timeouts.connect", "5: a duration needs a unit", "write 5s")],
    ),
    "port out of range": (
        POLICY + TARGET + "  destinations: {allow: [{hostnames: [a.test], ports: [99999, 0]}]}\n",
        [
            (6, 56, "spec.destinations.allow[0].ports[0]", "99999 is more than 65535", "65535 or less"),
            (6, 63, "spec.destinations.allow[0].ports[1]", "0 is less than 1", "1 or more"),
        ],
    ),
    "octal": (
        POLICY + TARGET + "  destinations: {allow: [{hostnames: [a.test], ports: [0777]}]}\n",
        [(6, 56, "spec.destinations.allow[0].ports[0]", "0777 is not a whole number", "base 60 or 8")],
    ),
    "quoted number": (
        POLICY + TARGET + '  destinations: {allow: [{hostnames: [a.test], ports: ["443"]}]}\n',
        [(6, 56, "spec.destinations.allow[0].ports[0]", "443 is not a whole number", "remove the quotes")],
    ),
    "address among hostnames": (
        POLICY + TARGET + "  destinations: {deny: [{hostnames: [10.1.2.3]}]}\n",
        [(6, 38, "spec.destinations.deny[0].hostnames[0]", "10.1.2.3: an address is not a hostname", "cidrs")],
    ),
    "nothing after allow": (
        POLICY + TARGET + "  destinations:\n    allow:\n",
        [(7, 11, "spec.destinations.allow", "nothing is written here", "write []")],
    ),
    "nothing after hostnames": (
        POLICY + TARGET + "  destinations:\n    allow:\n    - hostnames:\n      ports: [443]\n",
        [(8, 17, "spec.destinations.allow[0].hostnames", "stands where a list is expected", "[value]")],
    ),
    "entry for every host": (
        POLICY + TARGET + "  destinations:\n    allow:\n    - ports: [443]\n",
        [(8, 7, "spec.destinations.allow[0]", "names no destination", "add hostnames or cidrs")],
    ),
    "wrong case of an enum": (
        POLICY + TARGET + "  mode: report\n",
        [(6, 9, "spec.mode", "report is not possible here", "did you mean Report?")],
    ),
    "unknown kind": (
        "apiVersion: egressproxy.io/v1alpha1\nkind: EgresPolicy\nmetadata: {name: x}\n",
        [(2, 7, "kind", "unknown kind EgresPolicy", "did you mean EgressPolicy?")],
    ),
    "unknown version": (
        "apiVersion: gateway.networking.k8s.io/v3\nkind: Gateway\nmetadata: {name: x}\n",
        [(1, 13, "apiVersion", "Gateway is not known in gateway.networking.k8s.io/v3", "gateway.networking.k8s.io/v1")],
    ),
    "a version of another group": (
        "apiVersion: egressproxy.io/v1\nkind: Backend\nmetadata: {name: x}\n",
        [(1, 13, "apiVersion", "Backend is not known in egressproxy.io/v1", "use egressproxy.io/v1alpha1")],
    ),
    "no kind": (
        "metadata: {name: x}\n",
        [(1, 1, "apiVersion", "apiVersion is missing", "add"), (1, 1, "kind", "kind is", "add")],
    ),
    "not an object": ("- a\n", [(1, 1, "", "a document has to be an object", "apiVersion")]),
    "no name": (
        "apiVersion: v1\nkind: Namespace\nmetadata: {labels: {a: b}}\n",
        [(3, 11, "metadata.name", "name is missing", "add name")],
    ),
    "bad name": (
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: Agents_1}\n",
        [(3, 18, "metadata.name", "Agents_1: not a DNS subdomain name", "lower-case")],
    ),
    "a DNS server over TLS by its name": (
        POLICY + TARGET + '  dns: {servers: ["tls://dns.google"]}\n',
        [(6, 19, "spec.dns.servers[0]", "a DNS server is named by its address", "tls://192.0.2.1#dns.example")],
    ),
    "two mistakes at once": (
        POLICY + TARGET + "  mode: Enforced\n  dns: {servers: [dns.google], transport: quic}\n",
        [
            (6, 9, "spec.mode", "Enforced is not possible here", "did you mean Enforce?"),
            (7, 19, "spec.dns.servers[0]", "a DNS server is named by its address", "192.0.2.1:53"),
            (7, 43, "spec.dns.transport", "quic is not possible here", "udp"),
        ],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_manifest_is_refused_with_place_message_and_remedy(name: str, tmp_path: Path) -> None:
    content, expected = BAD[name]
    folder_with(tmp_path, good__yaml=NAMESPACE, bad__yaml=content)
    with pytest.raises(ConfigError) as caught:
        load([tmp_path])
    found = caught.value.problems
    assert len(found) == len(expected)
    for got, (line, column, path, message, remedy) in zip(found, expected, strict=True):
        assert got.file == str(tmp_path / "bad.yaml")
        # libyaml and the pure parser differ in where a truncated text ends, and where a bomb is seen
        if name not in ("syntax", "truncated", "alias bomb"):
            assert (got.line, got.column) == (line, column)
        assert got.field_path == path
        assert message in got.message
        assert remedy in got.remedy


def test_a_problem_reads_as_one_line() -> None:
    assert str(problem(POLICY + TARGET + "  mode: report\n")) == (
        "conf.yaml:6:9: EgressPolicy default/bad: spec.mode: report is not possible here (did you mean Report?)"
    )


def test_a_problem_stays_one_line_whatever_stands_in_the_names() -> None:
    with pytest.raises(ConfigError) as caught:
        load_text('{apiVersion: v1, kind: ConfigMap, metadata: {name: "a\\nb\\x1b[2J", "k\\ney": 1}}', "f.yaml")
    assert caught.value.problems
    for problem in caught.value.problems:
        assert str(problem).isprintable()


def test_a_problem_is_a_plain_dict_for_machines() -> None:
    got = problem(POLICY + TARGET + "  mode: report\n").as_dict()
    assert got["line"] == 6
    assert got["fieldPath"] == "spec.mode"
    assert got["object"] == "EgressPolicy default/bad"


@pytest.mark.parametrize("spec", ["5", "[1]", "text", "null", "{rules: 1, destination: [], listeners: {}}"])
def test_a_spec_of_a_kind_that_has_none_is_let_through(spec: str) -> None:
    assert len(load_text(f"{{apiVersion: v1, kind: ConfigMap, metadata: {{name: c}}, spec: {spec}}}")) == 1


def test_keys_with_dots_are_quoted_in_field_paths() -> None:
    got = problem("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {ca.crt: 5}\n")
    assert got.field_path == 'data["ca.crt"]'


def test_problems_of_all_files_come_at_once(tmp_path: Path) -> None:
    folder_with(tmp_path, a__yaml="a: [1", b__yaml=POLICY + TARGET + "  mode: x\n", c__yaml=NAMESPACE)
    with pytest.raises(ConfigError) as caught:
        load([tmp_path, tmp_path / "missing.yaml"])
    assert [Path(p.file).name for p in caught.value.problems] == ["a.yaml", "b.yaml", "missing.yaml"]


def test_rules_between_fields_are_placed_at_their_object() -> None:
    got = problem(
        ROUTE + "  rules:\n  - matches: [{path: {type: Exact, value: /a}}]\n"
        "    filters:\n    - type: URLRewrite\n"
        "      urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}\n"
    )
    assert (got.line, got.field_path, got.object) == (6, "spec.rules[0]", "HTTPRoute agents/r")
    assert "exactly one match of type PathPrefix" in got.message


# --- secrets ---------------------------------------------------------------------------------------------------------

CANARY = "c4n4ry-v4lue"
ENCODED = base64.b64encode(CANARY.encode()).decode()


@pytest.mark.parametrize(
    "body",
    [
        f"data: {{token: {ENCODED}!!}}\n",
        f"data: {{token: [{ENCODED}]}}\n",
        f"data: {ENCODED}\n",
        f"stringData: {{token: {{a: {CANARY}}}}}\n",
        f"stringData: [{CANARY}]\n",
        f"type: [{CANARY}]\n",
        f"immutable: {CANARY}\n",
        f"stringData: {{token: !{CANARY}}}\n",
        f"stringData: {{token: *{CANARY}}}\n",
        f"stringData: {{token: [{CANARY}}}\n",
        f"stringData: {{token: x}}\nmetadata: {{name: {CANARY}}}\n",
    ],
)
def test_no_problem_with_a_secret_shows_its_value(body: str) -> None:
    found = problems(f"apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\n{body}")
    assert found
    text = "".join(str(p.message) + p.remedy for p in found)
    assert CANARY not in text
    assert ENCODED not in text


def test_a_secret_never_shows_its_values() -> None:
    annotation = f'kubectl.kubernetes.io/last-applied-configuration: \'{{"data": "{ENCODED}"}}\''
    objects = load_text(
        f"apiVersion: v1\nkind: Secret\nmetadata: {{name: s, annotations: {{{annotation}}}}}\n"
        f"data: {{a: {ENCODED}}}\nstringData: {{b: {CANARY}}}\n"
    )
    (secret,) = objects.of(Secret)
    for key in ("a", "b"):
        value = secret.value(key)
        assert value is not None
        assert value.reveal() == CANARY.encode()
    shown = f"{secret!r} {secret} {secret.to_manifest()} {secret.model_dump()} {secret.model_dump_json()} {objects!r}"
    assert CANARY not in shown
    assert ENCODED not in shown
    assert set(secret.to_manifest()["data"]) == {"a", "b"}


def test_an_empty_secret_value_is_a_value() -> None:
    (secret,) = load_text('apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {a: ""}\n').of(Secret)
    value = secret.value("a")
    assert value is not None
    assert value.reveal() == b""
    assert secret.value("b") is None


# --- sets ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", "---\n---\n", "# nothing\n", "\n\n"])
def test_a_file_without_objects_is_refused(content: str, tmp_path: Path) -> None:
    folder_with(tmp_path, manifests__yaml=content)
    with pytest.raises(ConfigError, match="no objects found"):
        load([tmp_path])


def test_a_folder_whose_last_manifest_is_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no objects found"):
        load([tmp_path])


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: no such file"):
        load([tmp_path / "nowhere"])


@pytest.fixture
def as_nobody() -> Iterator[None]:
    """Root reads everything, so for this test it is somebody else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


def test_an_unreadable_file_is_refused(as_nobody: None) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own would be closed to nobody as a whole
        folder_with(Path(folder), a__yaml=NAMESPACE)
        (Path(folder) / "a.yaml").chmod(0)
        with pytest.raises(ConfigError, match="cannot be read: permission denied"):
            load([Path(folder)])


def test_a_folder_is_read_by_name_without_dot_files_and_folders(tmp_path: Path) -> None:
    folder_with(
        tmp_path,
        b__yml=NAMESPACE.replace("agents", "b"),
        a__yaml=NAMESPACE.replace("agents", "a"),
        c__json='{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "c"}}',
        notes__txt="not yaml: [",
        __hidden__yaml="a: [1",
    )
    (tmp_path / "below.yaml").mkdir()
    (tmp_path / "below.yaml" / "d.yaml").write_text("a: [1")
    assert [made.name for made in load([tmp_path]).objects] == ["a", "b", "c"]


def test_a_named_pipe_among_the_manifests_is_told_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yaml")
    with pytest.raises(ConfigError, match=r"a\.yaml: this is a pipe, a socket or a device") as caught:
        load([tmp_path])
    assert len(caught.value.problems) == 1


def test_a_mounted_config_map_is_read_through_its_links(tmp_path: Path) -> None:
    (tmp_path / "..2024").mkdir()
    folder_with(tmp_path / "..2024", a__yaml=NAMESPACE)
    (tmp_path / "..data").symlink_to("..2024")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    (only,) = load([tmp_path]).objects
    assert only.origin.file == str(tmp_path / "a.yaml")


def test_the_same_object_twice_is_refused_with_both_places(tmp_path: Path) -> None:
    folder_with(tmp_path, a__yaml=NAMESPACE, b__yaml="# moved\n" + NAMESPACE)
    with pytest.raises(ConfigError) as caught:
        load([tmp_path])
    (only,) = caught.value.problems
    assert only.file == str(tmp_path / "b.yaml")
    assert only.line == 4
    assert f"the same object stands at {tmp_path / 'a.yaml'}:1" in only.message


def test_versions_of_one_kind_are_the_same_object() -> None:
    text = "apiVersion: gateway.networking.k8s.io/{}\nkind: GatewayClass\nmetadata: {{name: c}}\n"
    text += "spec: {{controllerName: a.b/c}}\n"
    assert "the same object" in problem(text.format("v1") + "---\n" + text.format("v1beta1")).message


def test_lists_are_taken_apart_with_places() -> None:
    text = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Namespace\n  metadata: {name: a}\n"
    (only,) = load_text(text).objects
    assert only.origin.line == 4
    assert problem(text.replace("name: a", "name: A")).line == 6


def test_a_set_finds_its_objects() -> None:
    objects = load_text(NAMESPACE + "---\n" + ROUTE.replace("spec:", "spec: {}"))
    (route,) = objects.of(HttpRoute)
    assert objects.get("gateway.networking.k8s.io", "HTTPRoute", "agents", "r") is route
    assert objects.find(HttpRoute, "agents", "r") is route
    assert objects.find(Namespace, "any", "agents") is objects.get("", "Namespace", "", "agents")
    assert objects.of(Gateway) == ()
    assert objects.get("", "Namespace", "", "other") is None
    assert len(objects) == 2


def test_an_empty_set_can_be_made_in_code() -> None:
    assert ResourceSet().of(GatewayClass) == ()


def test_ten_thousand_rules_load(tmp_path: Path) -> None:
    entries = "".join(f"    - hostnames: [host{i}.example.com]\n      ports: [443]\n" for i in range(10_000))
    folder_with(tmp_path, big__yaml=POLICY + TARGET + "  destinations:\n    allow:\n" + entries)
    (policy,) = load([tmp_path]).of(EgressPolicy)
    assert policy.spec.destinations is not None
    assert policy.spec.destinations.allow is not None
    assert len(policy.spec.destinations.allow) == 10_000
    assert policy.spec.destinations.allow[9_999].hostnames == ("host9999.example.com",)


def test_two_thousand_objects_load_and_a_mistake_among_them_is_found(tmp_path: Path) -> None:
    one = (
        "---\n"
        + ROUTE.replace("name: r", "name: r{0}")
        + "  hostnames: [h{0}.example.com]\n  rules: [{{matches: [{{path: {{value: /a}}}}]}}]\n"
    )
    one = one.replace("{name: r{0}, namespace: agents}", "{{name: r{0}, namespace: agents}}")
    text = "".join(one.format(i) for i in range(2_000))
    folder_with(tmp_path, big__yaml=text)
    assert len(load([tmp_path]).of(HttpRoute)) == 2_000
    folder_with(tmp_path, big__yaml=text.replace("h1777.", "H1777."))
    with pytest.raises(ConfigError) as caught:
        load([tmp_path])
    (only,) = caught.value.problems
    assert only.object == "HTTPRoute agents/r1777"
    assert only.line == 1777 * 7 + 6
    assert "write h1777.example.com" in only.remedy


# --- nulls -----------------------------------------------------------------------------------------------------------

NULLS = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r, labels: ~, annotations: {a: ~}}
spec:
  parentRefs: [{name: gw, namespace: ~, sectionName: null, port: }]
  hostnames:
  useDefaultGateways: ~
  rules:
  - name: ~
    matches: ~
    timeouts: {request: ~}
    filters:
    - type: RequestHeaderModifier
      requestHeaderModifier: {set: ~, add: [{name: a, value: b}]}
    backendRefs: [{name: s, port: 80, weight: ~, filters: ~}]
status:
"""


BARE = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r}
spec:
  parentRefs: [{name: gw}]
  rules:
  - timeouts: {}
    filters:
    - type: RequestHeaderModifier
      requestHeaderModifier: {add: [{name: a, value: b}]}
    backendRefs: [{name: s, port: 80}]
"""


def test_a_field_that_is_null_is_as_one_that_is_not_there() -> None:
    (written,) = load_text(NULLS).of(HttpRoute)
    (bare,) = load_text(BARE).of(HttpRoute)
    assert written.spec == bare.spec
    (rule,) = written.spec.rules
    assert len(rule.matches) == 1
    assert rule.backend_refs[0].weight == 1
    assert "hostnames" not in written.to_manifest()["spec"]


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Gateway", "{gatewayClassName: a, addresses: ~, listeners: [{name: a, port: 80, protocol: HTTP, tls: ~}]}"),
        (
            "ListenerSet",
            "{parentRef: {name: a, group: ~}, listeners: [{name: a, port: 80, protocol: HTTP, hostname: ~}]}",
        ),
        ("GRPCRoute", "{rules: [{matches: [{method: {service: a.B, method: ~}, headers: ~}]}]}"),
        ("TLSRoute", "{hostnames: [a.example], rules: [{name: ~, backendRefs: [{name: s, port: 80}]}]}"),
        ("TCPRoute", "{parentRefs: ~, rules: [{backendRefs: [{name: s, port: 80, group: ~, kind: ~}]}]}"),
        ("ReferenceGrant", "{from: [{group: '', kind: A, namespace: b}], to: [{group: '', kind: A, name: ~}]}"),
        (
            "BackendTLSPolicy",
            "{targetRefs: [{group: '', kind: Service, name: s, sectionName: ~}],"
            " validation: {hostname: a.example, caCertificateRefs: ~, wellKnownCACertificates: System}, options: ~}",
        ),
    ],
)
def test_nulls_are_absent_in_every_kind(kind: str, spec: str) -> None:
    assert (
        len(load_text(f"apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: a}}\nspec: {spec}"))
        == 1
    )


def test_nulls_are_absent_in_json_too() -> None:
    text = '{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": null, "type": null}}'
    assert len(load_text(text)) == 1


def test_a_null_that_would_lift_a_restriction_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing is written here"):
        load_text(POLICY + TARGET + "  destinations: {deny: ~}\n")


def test_a_null_in_the_config_of_a_filter_is_left_to_the_filter() -> None:
    made = without_nulls({"spec": {"extensions": [{"config": {"a": None}, "phase": None}], "x": None}, "status": None})
    assert made == {"spec": {"extensions": [{"config": {"a": None}}]}}


def test_a_null_in_a_list_is_no_field_and_refused() -> None:
    with pytest.raises(ConfigError, match="hostnames"):
        load_text(ROUTE + "  hostnames: [~]\n")


@pytest.mark.parametrize("namespace", ["agents", "default"])
def test_a_namespace_of_an_object_that_has_none_is_told(namespace: str):
    spec = "spec: {controllerName: egressproxy.io/gateway-controller}"
    head = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata:\n  name: c\n"
    (warning,) = load_text(f"{head}  namespace: {namespace}\n{spec}\n").warnings
    assert (warning.severity, warning.code) == (Severity.WARNING, "NamespaceIgnored")
    assert (warning.object, warning.field_path, warning.line, warning.column) == (
        "GatewayClass c",
        "metadata.namespace",
        5,
        3,
    )
    assert f"not in {namespace} alone" in warning.message
    assert load_text(f"{head}{spec}\n").warnings == ()


def test_a_folder_whose_files_have_other_names_is_said_to_be_unread(tmp_path: Path):
    folder = tmp_path / "mounted"
    folder.mkdir()
    (folder / "config").write_text("kind: Gateway")
    with pytest.raises(ConfigError, match=r"nothing of this folder is read: .*there is config.*write config.yaml"):
        load([folder])
    beside = tmp_path / "a.yaml"
    beside.write_text("apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n")
    (warning,) = load([folder, beside]).warnings
    assert (warning.file, "nothing of this folder is read" in warning.message) == (str(folder), True)
    (folder / "config").unlink()
    assert load([folder, beside]).warnings == ()


def test_a_folder_with_folders_alone_says_which_to_give(tmp_path: Path):
    (tmp_path / "conf" / "team-a").mkdir(parents=True)
    (tmp_path / "conf" / "team-a" / "a.yaml").write_text(NAMESPACE)
    with pytest.raises(ConfigError, match=r"no folder in it is looked into \(there is team-a\).*conf/team-a"):
        load([tmp_path / "conf"])


def test_a_kustomization_in_a_folder_is_left_out_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: [a.yaml]\n")
    (tmp_path / "a.yaml").write_text("apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n")
    found = load([tmp_path])
    assert len(found) == 1
    (note,) = found.warnings
    assert (note.severity, note.code) == (Severity.NOTE, "KindLeftOut")
    assert "kubectl kustomize" in note.remedy
