"""`check` says everything that is wrong, at once, and opens nothing."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from egressproxy.cli.main import main
from egressproxy.config.compile.interface import Compiled
from egressproxy.config.reading.load import ResourceSet
from egressproxy.ir.gateway import ConfigIR, ListenerIR, ListenerProtocol
from egressproxy.processes.loader import compilation

GATEWAY = """apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw}
spec:
  gatewayClassName: egressproxy
  listeners:
  - {name: forward, port: 3128, protocol: egressproxy.io/forward-proxy}
"""
ROUTE = """apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: lost}
spec: {parentRefs: [{name: gw}]}
"""
LISTENER = ListenerIR("default/gw", "forward", ("127.0.0.1", "::1"), 3128, ListenerProtocol.FORWARD_PROXY)


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that likes everything but routes."""

    def compiled(resources: ResourceSet, *_more: object) -> Compiled:
        statuses: dict[Any, Any] = {}
        for resource in resources.objects:
            if resource.kind == "HTTPRoute":
                wrong = [
                    condition("Accepted", "True", "Accepted"),
                    condition("ResolvedRefs", "False", "BackendNotFound", "no b"),
                ]
                statuses[resource.key] = {"parents": [{"parentRef": {"name": "gw"}, "conditions": wrong}]}
            else:
                conditions = [condition("Accepted", "True", "Accepted"), condition("Insecure", "False", "Secure")]
                listeners = [{"name": "forward", "conditions": [condition("Conflicted", "False", "NoConflicts")]}]
                statuses[resource.key] = {"conditions": conditions, "listeners": listeners}
        return Compiled(ConfigIR((LISTENER,)), statuses)

    monkeypatch.setattr(compilation, "compile_config", compiled)


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["check", *map(str, arguments)])


@pytest.mark.usefixtures("compiles")
def test_a_good_configuration_is_0_and_shows_what_would_listen(tmp_path: Path):
    (tmp_path / "gateway.yaml").write_text(GATEWAY)
    result = invoke(tmp_path)
    assert result.exit_code == 0
    assert result.output == (
        "listener default/gw forward: egressproxy.io/forward-proxy on 127.0.0.1:3128, [::1]:3128\n"
        "1 object, 0 warnings.\n"
    )


def test_a_unix_socket_is_shown_as_it_is_written(tmp_path: Path):
    text = GATEWAY.replace(
        "spec:\n", 'spec:\n  addresses: [{type: egressproxy.io/UnixSocket, value: "unix:///run/a.sock"}]\n'
    )
    (tmp_path / "gateway.yaml").write_text(text)
    assert (
        "listener default/gw forward: egressproxy.io/forward-proxy on unix:///run/a.sock\n" in invoke(tmp_path).output
    )


@pytest.mark.usefixtures("compiles")
def test_what_cannot_be_served_fails_with_its_place(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(GATEWAY + "---\n" + ROUTE)
    result = invoke(tmp_path)
    assert result.exit_code == 1
    assert result.output.splitlines()[0] == (
        f"unserved: {tmp_path}/a.yaml:9:1: HTTPRoute default/lost: parent gw: "
        "ResolvedRefs is False (BackendNotFound): no b"
    )
    assert result.output.endswith("2 objects, 1 not served as written, 0 warnings.\n")


PLAIN = """apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: plain}
spec:
  destination: {type: Fqdn, fqdn: {hostname: a.example}, ports: [{number: 80, tls: {mode: None}}]}
"""


def test_strict_makes_warnings_fail(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(GATEWAY + "---\n" + PLAIN)
    result = invoke(tmp_path)
    assert result.exit_code == 0
    assert "warning: " in result.output
    assert result.output.endswith("2 objects, 1 warning.\n")
    assert invoke(tmp_path, "--strict").exit_code == 1
    assert invoke(tmp_path, "--strict", "--allow-unserved").exit_code == 1
    (tmp_path / "a.yaml").write_text(GATEWAY)
    assert invoke(tmp_path, "--strict").exit_code == 0


@pytest.mark.usefixtures("compiles")
def test_what_is_not_served_can_be_allowed_and_is_said_all_the_same(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(GATEWAY + "---\n" + ROUTE)
    for more in ([], ["--strict"]):
        assert invoke(tmp_path, *more).exit_code == 1
        allowed = invoke(tmp_path, "--allow-unserved", *more)
        assert allowed.exit_code == 0
        assert "unserved: " in allowed.output


def test_what_asks_for_nothing_fails_nothing(tmp_path: Path):
    """The manifests of an application stand beside ours: nobody has to mend that."""
    more = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: app}\nspec: {}\n"
    (tmp_path / "a.yaml").write_text(GATEWAY + more)
    result = invoke(tmp_path, "--strict")
    assert result.exit_code == 0
    assert result.output.startswith(f"note: {tmp_path}/a.yaml:10:7: Deployment default/app: it is left out")


def test_every_problem_of_every_file_is_shown_and_the_status_is_1(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(GATEWAY.replace("3128", "99999").replace("gatewayClassName", "gatewayClasName"))
    (tmp_path / "b.yaml").write_text(ROUTE.replace("HTTPRoute", "HTTPRout"))
    result = invoke(tmp_path / "a.yaml", tmp_path / "b.yaml")
    assert result.exit_code == 1
    assert (
        f"{tmp_path}/a.yaml:7:27: Gateway default/gw: spec.listeners[0].port: 99999 is more than 65535" in result.output
    )
    assert "did you mean gatewayClassName?" in result.output
    assert "did you mean HTTPRoute?" in result.output
    assert result.output.splitlines()[-1].endswith("this configuration would be refused as a whole.")


def test_problems_can_be_read_by_programs(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(GATEWAY.replace("3128", "99999"))
    result = invoke(tmp_path, "--output", "json")
    assert result.exit_code == 1
    report = json.loads(result.output)
    assert report["ok"] is False
    (problem,) = report["problems"]
    assert (problem["line"], problem["fieldPath"]) == (7, "spec.listeners[0].port")
    assert (problem["severity"], problem["code"]) == ("error", "Invalid")


@pytest.mark.usefixtures("compiles")
def test_a_good_report_can_be_read_by_programs(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(GATEWAY + "---\n" + ROUTE)
    report = json.loads(invoke("--config", tmp_path, "--output", "json").output)
    assert (report["ok"], report["problems"], report["objects"], report["warnings"]) == (False, [], 2, [])
    (unserved,) = report["unserved"]
    assert (unserved["severity"], unserved["code"]) == ("unserved", "BackendNotFound")
    place = (unserved["file"], unserved["line"], unserved["column"], unserved["fieldPath"])
    assert (*place, unserved["object"]) == (f"{tmp_path}/a.yaml", 9, 1, "", "HTTPRoute default/lost")
    assert unserved["message"] == "parent gw: ResolvedRefs is False (BackendNotFound): no b"
    assert report["listeners"] == [
        {
            "gateway": "default/gw",
            "name": "forward",
            "protocol": "egressproxy.io/forward-proxy",
            "addresses": ["127.0.0.1:3128", "[::1]:3128"],
        }
    ]


def test_the_real_compiler_finds_what_cannot_be_served_and_nothing_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(socket, "socket", lambda *_, **__: pytest.fail("a socket was opened"))
    route = ROUTE.replace(
        "spec: {parentRefs: [{name: gw}]}", "spec:\n  parentRefs: [{name: gw}]\n  rules:\n  - {backendRefs: [REF]}"
    )
    route = route.replace("REF", "{group: egressproxy.io, kind: Backend, name: not-there}")
    (tmp_path / "a.yaml").write_text(GATEWAY)
    assert invoke(tmp_path, "--strict").exit_code == 0
    (tmp_path / "b.yaml").write_text(route)
    result = invoke(tmp_path)
    assert result.exit_code == 1
    assert (
        f"unserved: {tmp_path}/b.yaml:7:20: HTTPRoute default/lost: spec.rules[0].backendRefs[0]: parent gw: "
        "ResolvedRefs is False (BackendNotFound)" in result.output
    )
    assert "listener default/gw forward: egressproxy.io/forward-proxy on 127.0.0.1:3128\n" in result.output


def test_what_serves_nothing_fails(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(GATEWAY.replace("gatewayClassName: egressproxy", "gatewayClassName: istio"))
    result = invoke(tmp_path, "--strict")
    assert result.exit_code == 1
    first, second, last = result.output.splitlines()
    assert first == (
        f"unserved: {tmp_path}/a.yaml:5:21: Gateway default/gw: spec.gatewayClassName: there is no GatewayClass istio: "
        "the Gateway is not served (write egressproxy)"
    )
    assert second.startswith("unserved: no listener is served")
    assert last == "1 object, 2 not served as written, 0 warnings."


POLICY = """apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: filtered}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}]
  extensions:
  - name: mine
    type: egressproxy.io/Python:v1
    phase: request-headers
    config:
      path: mine.py
"""
HEAD = "from egressproxy.filters import Filter\n\n\nclass Mine(Filter):\n"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "there is no such file"),
        ("def (:\n", "mine.py:1: SyntaxError"),
        (HEAD + "    def request_header(self, x): ...\n", "has no `request_headers`"),
        ("import nothing_of_this_name\n", "mine.py:1: ModuleNotFoundError"),
    ],
)
def test_a_filter_that_cannot_be_built_is_a_problem_where_it_is_declared(tmp_path: Path, source: str | None, said: str):
    (tmp_path / "a.yaml").write_text(GATEWAY + "---\n" + POLICY)
    if source is not None:
        (tmp_path / "mine.py").write_text(source)
    result = invoke(tmp_path)
    assert result.exit_code == 1
    problem, verdict = result.output.splitlines()
    place = "a.yaml:19:7: EgressPolicy default/filtered: spec.extensions[0].config"
    assert problem.startswith(f"{tmp_path}/{place}: filter mine (egressproxy.io/Python:v1): ")
    assert said in problem
    assert verdict.startswith("1 problem: ")


MIRRORED = """apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: copied}
spec:
  parentRefs: [{name: gw}]
  rules:
  - backendRefs: [{group: egressproxy.io, kind: Backend, name: there}]
    filters:
    - {type: RequestMirror, requestMirror: {backendRef: {group: egressproxy.io, kind: Backend, name: copies}}}
---
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: there}
spec: {destination: {type: Fqdn, fqdn: {hostname: a.example}, ports: [{number: 443, tls: {mode: Simple}}]}}
---
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: copies}
spec:
  destination: {type: Fqdn, fqdn: {hostname: b.example}, ports: [{number: 443, tls: {mode: Simple}}]}
  extensions:
  - {name: mine, type: "egressproxy.io/Python:v1", phase: backend-request, config: {path: mine.py}}
"""


def test_a_filter_of_a_backend_that_only_gets_copies_is_built_too(tmp_path: Path):
    """`run` would refuse it."""
    (tmp_path / "a.yaml").write_text(GATEWAY + "---\n" + MIRRORED)
    result = invoke(tmp_path)
    assert result.exit_code == 1
    assert "Backend default/copies: spec.extensions[0].config: filter mine" in result.output
    assert "there is no such file" in result.output


def test_of_two_backends_of_one_name_the_one_is_blamed_whose_filter_it_is(tmp_path: Path):
    group = "gateway.networking.k8s.io"
    route = MIRRORED.replace(
        "group: egressproxy.io, kind: Backend, name: copies", f"group: {group}, kind: Backend, name: copies"
    )
    ours = route.rpartition("---\n")[2]
    theirs = ours.replace("egressproxy.io/v1alpha1", f"{group}/v1alpha1", 1).replace("mine.py", "other.py")
    text = "---\n".join((GATEWAY, route, theirs))
    (tmp_path / "a.yaml").write_text(text)
    result = invoke(tmp_path)
    assert result.exit_code == 1
    (line,) = (number for number, each in enumerate(text.splitlines(), 1) if "other.py" in each)
    problem = result.output.splitlines()[0]
    assert problem.startswith(f"{tmp_path}/a.yaml:{line}:")
    assert "other.py: there is no such file" in problem


BROKEN = """apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: broken}
spec: {destination: {type: Fqdn, fqdn: {hostname: a.example}, ports: [{number: 443, protokol: HTTP2}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: follows}
spec:
  parentRefs: [{name: gw}]
  rules: [{backendRefs: [{group: egressproxy.io, kind: Backend, name: broken}]}]
"""
MISSING = """apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: lost}
spec:
  parentRefs: [{name: gw}]
  rules: [{backendRefs: [{group: egressproxy.io, kind: Backend, name: brokem}]}]
"""
OPTION = """apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: option}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}]
  extensions:
  - {name: meter, type: "egressproxy.io/TokenMeter:v1", phase: request-headers, config: {currenci: EUR}}
"""


def test_a_bad_field_a_bad_option_and_a_missing_object_are_told_in_one_round(tmp_path: Path):
    for name, text in (("a", GATEWAY), ("b", BROKEN), ("c", OPTION), ("d", MISSING), ("e", POLICY)):
        (tmp_path / f"{name}.yaml").write_text(text)
    result = invoke(tmp_path)
    assert result.exit_code == 1
    field, option, built, lost, verdict = result.output.splitlines()
    assert field.startswith(f"{tmp_path}/b.yaml:4:85: Backend default/broken: spec.destination.ports[0].protokol: ")
    assert "EgressPolicy default/option: spec.extensions[0].config.currenci: " in option
    assert "EgressPolicy default/filtered: spec.extensions[0].config: filter mine" in built
    assert lost.startswith("unserved: ")
    assert "HTTPRoute default/lost" in lost
    assert "Backend default/brokem does not exist" in lost
    assert verdict == "3 problems, 1 not served as written: this configuration would be refused as a whole."
    report = json.loads(invoke(tmp_path, "-o", "json").output)
    assert [len(report[kind]) for kind in ("problems", "unserved")] == [3, 1]
    assert not report["ok"]


def test_where_a_file_may_hold_anything_nothing_is_missed(tmp_path: Path):
    for name, text in (("a", GATEWAY), ("b", "kind: [\n"), ("c", OPTION), ("d", MISSING)):
        (tmp_path / f"{name}.yaml").write_text(text)
    file, option, verdict = invoke(tmp_path).output.splitlines()
    assert file.startswith(f"{tmp_path}/b.yaml:")
    assert "spec.extensions[0].config.currenci: " in option
    assert verdict.startswith("2 problems: ")


def test_a_filter_that_can_be_built_is_no_problem(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(GATEWAY + "---\n" + POLICY)
    (tmp_path / "mine.py").write_text(HEAD + "    def request_headers(self, x): ...\n")
    assert invoke(tmp_path, "--strict").exit_code == 0


def test_an_empty_folder_is_a_problem(tmp_path: Path):
    result = invoke(tmp_path)
    assert result.exit_code == 1
    assert "no objects found" in result.output


@pytest.mark.parametrize("arguments", [[], ["/does/not/exist"], ["--output", "xml", "."], ["--bind", "x", "."]])
def test_wrong_usage_is_2(arguments: list[str]):
    assert invoke(*arguments).exit_code == 2


INJECTING = """apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: injecting}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}]
  extensions:
  - name: key
    type: egressproxy.io/CredentialInjector:v1
    phase: backend-request
    config: {secretRef: {name: absent, key: token}, header: Authorization, template: "Bearer {}"}
"""
HTTPS = "  - name: tls\n    port: 8443\n    protocol: HTTPS\n    tls: {certificateRefs: [{name: absent}]}\n"
RULES = (
    "  rules: [{matches: [{path: {type: RegularExpression, value: '(?=a)b'}}], "
    "backendRefs: [{group: egressproxy.io, kind: Backend, name: plain}]}]\n"
)
TWO = "  - {name: a, port: 80, protocol: HTTP}\n  - {name: b, port: 80, protocol: TCP}\n"
LIMITING = """
apiVersion: agentic.networking.x-k8s.io/v1alpha1
kind: XLimitPolicy
metadata: {name: limit}
spec: {targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}]}
"""
UDP = "apiVersion: gateway.networking.k8s.io/v1alpha2\nkind: UDPRoute\nmetadata: {name: dns}\nspec: {}\n"


@pytest.mark.parametrize(
    ("manifests", "code"),
    [
        ([GATEWAY.replace("gatewayClassName: egressproxy", "gatewayClassName: nobodys")], "GatewayClassNotFound"),
        ([GATEWAY.replace("egressproxy.io/forward-proxy", "QUIC")], "UnsupportedProtocol"),
        ([GATEWAY + HTTPS], "InvalidCertificateRef"),
        ([GATEWAY + TWO], "ProtocolConflict"),
        ([GATEWAY, ROUTE.replace("[{name: gw}]", "[{name: gone}]")], "ParentNotFound"),
        ([GATEWAY, ROUTE.replace("{parentRefs: [{name: gw}]}", "{}")], "NoParent"),
        ([GATEWAY, PLAIN, ROUTE.replace("{parentRefs: [{name: gw}]}", "\n  parentRefs: [{name: gw}]\n" + RULES)],
         "UnsupportedValue"),
        ([GATEWAY, POLICY.replace("name: gw", "name: gone")], "TargetNotFound"),
        ([GATEWAY, POLICY.partition("  extensions")[0] + "  dns: {servers: ['https://a.test/', 1.1.1.1]}\n"],
         "PartlyServed"),
        ([GATEWAY, INJECTING], "SecretNotFound"),
        ([GATEWAY, UDP], "KindLeftOut"),
        ([GATEWAY, LIMITING], "KindLeftOut"),
    ],
)  # fmt: skip
def test_whatever_is_not_served_as_written_fails(tmp_path: Path, manifests: list[str], code: str):
    (tmp_path / "a.yaml").write_text("---\n".join(manifests))
    result = invoke(tmp_path, "--output", "json")
    report = json.loads(result.output)
    assert (result.exit_code, report["ok"], report["problems"]) == (1, False, [])
    assert code in {each["code"] for each in report["unserved"]}
    assert {each["severity"] for each in report["unserved"]} == {"unserved"}
    assert invoke(tmp_path, "--allow-unserved").exit_code == 0


PROXY = """apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: corporate}
spec:
  destination: {type: Fqdn, fqdn: {hostname: proxy.corp.example}, ports: [{number: 3128, tls: {mode: None}}]}
"""
BEHIND = """apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: behind}
spec:
  parent: {name: corporate}
  destination: {type: Fqdn, fqdn: {hostname: a.example}, ports: [{number: 443, tls: {mode: Simple}}]}
"""
PASSTHROUGH = """apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: streams}
spec:
  gatewayClassName: egressproxy
  listeners:
  - {name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: through}
spec:
  parentRefs: [{name: streams}]
  hostnames: [proxy.corp.example]
  rules: [{backendRefs: [{group: egressproxy.io, kind: Backend, name: corporate}]}]
"""
REQUESTS = """apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: plainly}
spec:
  parentRefs: [{name: gw}]
  hostnames: [a.example]
  rules: [{backendRefs: [{group: egressproxy.io, kind: Backend, name: corporate}]}]
"""


@pytest.mark.parametrize("manifests", [[GATEWAY, PROXY, BEHIND], [GATEWAY, PROXY, PASSTHROUGH]])
def test_a_parent_and_a_backend_of_streams_are_not_in_plain_text(tmp_path: Path, manifests: list[str]):
    """The TLS inside is that of the backend behind the parent, or the client's."""
    (tmp_path / "a.yaml").write_text("---\n".join(manifests))
    result = invoke(tmp_path, "--strict")
    assert result.exit_code == 0, result.output
    (tmp_path / "b.yaml").write_text(REQUESTS)  # it has requests, too
    result = invoke(tmp_path, "--strict")
    assert result.exit_code == 1
    assert "Backend default/corporate: Insecure is True (NotVerified): requests go in plain text" in result.output


def test_it_says_what_became_of_a_published_backend(tmp_path: Path):
    published = """
apiVersion: gateway.networking.k8s.io/v1alpha1
kind: Backend
metadata: {name: models, namespace: agents}
spec:
  destination: {type: FQDN, fqdn: {hostname: models.example, port: 8443}}
  tls: {mode: PLATFORM_PROVIDED}
"""
    (tmp_path / "a.yaml").write_text(published)
    result = invoke(tmp_path, "--allow-unserved")
    line = "backend agents/models (Backend.gateway.networking.k8s.io): read as models.example:8443 (HTTP, TLS Simple)\n"
    assert line in result.output
    report = json.loads(invoke(tmp_path, "--allow-unserved", "-o", "json").output)
    assert report["backends"] == [
        {
            "name": "agents/models",
            "kind": "Backend.gateway.networking.k8s.io",
            "readAs": "models.example:8443 (HTTP, TLS Simple)",
        }
    ]


def test_a_file_whose_name_is_no_text_leaves_the_output_json(tmp_path: Path):
    """Strict readers refuse half of a surrogate pair (RFC 8259, 8.2)."""
    (tmp_path / os.fsdecode(b"\xff.yaml")).write_text("nope: [")
    done = CliRunner().invoke(main, ["check", "-o", "json", str(tmp_path)])
    assert done.exit_code == 1
    (problem,) = json.loads(done.output)["problems"]
    assert problem["file"] == f"{tmp_path}/\\udcff.yaml"


def test_an_audit_folder_that_is_not_there_or_takes_no_files_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, manifests = tmp_path / "records", tmp_path / "m"
    manifests.mkdir()
    policy = f"""apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {{name: audited}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: gw}}]
  extensions:
  - name: audit
    type: egressproxy.io/Audit:v1
    phase: request-headers
    config:
      folder: {folder}
"""
    (manifests / "m.yaml").write_text(f"{GATEWAY}---\n{policy}")
    result = invoke(manifests)
    assert f"spec.extensions[0].config.folder: {folder} is no folder of this machine" in result.output
    assert "m.yaml:19:15: " in result.output
    assert "1 warning." in result.output
    assert (result.exit_code, invoke(manifests, "--strict").exit_code) == (0, 1)
    folder.write_text("")
    assert "is no folder of this machine" in invoke(manifests).output
    folder.unlink()
    folder.mkdir()
    assert "0 warnings." in invoke(manifests).output
    monkeypatch.setattr(os, "access", lambda path, _mode: str(path) != str(folder))
    assert f"{folder} cannot be written to by this user" in invoke(manifests).output


def test_what_is_experimental_is_served_with_the_option_alone(tmp_path: Path):
    direct = "  rules: [{filters: [{type: DirectResponse, directResponse: {statusCode: 403}}]}]"
    route = f"{ROUTE.replace('spec: {parentRefs: [{name: gw}]}', 'spec:')}  parentRefs: [{{name: gw}}]\n{direct}\n"
    (tmp_path / "all.yaml").write_text(f"{GATEWAY}---\n{route}")
    result = invoke(tmp_path)
    assert result.exit_code == 1
    assert "start the gateway with --experimental" in result.output
    assert invoke(tmp_path, "--experimental").exit_code == 0


SECRETS = """\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: egress, namespace: agents}
spec:
  gatewayClassName: egressproxy
  listeners:
  - {name: forward, port: 3128, protocol: egressproxy.io/forward-proxy}
  - {name: https, port: 3443, protocol: HTTPS, hostname: x.example, tls: {certificateRefs: [{name: gw-cert}]}}
---
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: default, namespace: agents}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: egress}]
  destinations: {allow: [{hostnames: [api.github.com], ports: [443]}]}
  intercept: {hostnames: [api.github.com], caCertificateRef: {name: my-ca}}
---
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: openai, namespace: agents}
spec:
  destination:
    type: Fqdn
    fqdn: {hostname: api.openai.com}
    ports: [{number: 443, protocol: HTTP11, tls: {mode: Mutual, clientCertificateRef: {name: client-cert}}}]
  extensions:
  - name: openai-key
    type: egressproxy.io/CredentialInjector:v1
    phase: backend-request
    config: {secretRef: {name: openai-api-key, key: special}, header: Authorization, template: "Bearer {}"}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: openai, namespace: agents}
spec:
  parentRefs: [{name: egress, sectionName: https}]
  rules:
  - backendRefs: [{group: egressproxy.io, kind: Backend, name: openai}]
"""


def elsewhere(folder: Path, text: str) -> Result:
    (folder / "a.yaml").write_text(text)
    return CliRunner().invoke(main, ["check", str(folder), "--secrets-elsewhere", "--strict"])


def test_secrets_that_are_elsewhere_are_forgiven_with_all_that_follows(tmp_path: Path):
    result = elsewhere(tmp_path, SECRETS)
    assert result.exit_code == 0, result.output
    for name in ("client-cert", "gw-cert", "my-ca", "openai-api-key"):
        assert f"elsewhere: Secret agents/{name}\n" in result.output
    assert "listener agents/egress https: HTTPS" in result.output
    assert CliRunner().invoke(main, ["check", str(tmp_path)]).exit_code == 1


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("name: openai}]", "name: openay}]", "Backend agents/openay does not exist"),
        ("{name: openai-api-key,", "{name: openai-api-key, namespace: other,", "RefNotPermitted"),
        ("{name: openai-api-key,", "{name: OpenAI_key,", "Secret agents/OpenAI_key with key special"),
        ("header: Authorization,", "heather: Authorization,", "heather"),
        ("name: gw-cert}", "kind: ConfigMap, name: gw-cert}", "gw-cert"),
        (
            "---\napiVersion: egressproxy.io/v1alpha1\nkind: Backend",
            "---\napiVersion: v1\nkind: Secret\nmetadata: {name: openai-api-key, namespace: agents}\n"
            "stringData: {other: x}\n---\napiVersion: egressproxy.io/v1alpha1\nkind: Backend",
            "Secret agents/openai-api-key with key special",
        ),
        (
            "---\napiVersion: egressproxy.io/v1alpha1\nkind: Backend",
            "  extensions:\n  - name: canaries\n    type: egressproxy.io/CanaryKeys:v1\n    phase: request-headers\n"
            "    config: {secretRefs: [{name: canary, key: key}, {name: short, key: key}]}\n"
            "---\napiVersion: v1\nkind: Secret\nmetadata: {name: short, namespace: agents}\n"
            "stringData: {key: x}\n---\napiVersion: egressproxy.io/v1alpha1\nkind: Backend",
            "a canary key has to have 16 to 1024 characters",
        ),
    ],
    ids=["backend", "grant", "impossible-name", "field", "kind", "key", "value-behind-a-missing-one"],
)
def test_nothing_but_missing_secrets_is_forgiven(tmp_path: Path, before: str, after: str, found: str):
    assert before in SECRETS
    result = elsewhere(tmp_path, SECRETS.replace(before, after, 1))
    assert result.exit_code == 1, result.output
    assert found in result.output


def test_values_to_be_replaced_are_noted_with_their_place(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(
        "apiVersion: v1\nkind: Secret\nmetadata: {name: a, namespace: agents}\nstringData: {a: replace-me}\n---\n"
        + SECRETS.replace("hostname: x.example", "hostname: replace-me.example")
    )
    result = CliRunner().invoke(main, ["check", str(tmp_path), "--secrets-elsewhere"])
    assert (
        f"note: {tmp_path}/a.yaml:1:1: Secret agents/a: stringData.a: the value still has replace-me" in result.output
    )
    assert "spec.listeners[1].hostname: the value still has replace-me (write your own in its place)" in result.output
    assert result.exit_code == 0
