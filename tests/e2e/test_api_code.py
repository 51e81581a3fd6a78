"""What is written through the admin API is data: none of it ever runs as code, and none of it reads a file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S
from tests.support.writing import JSON, Client, delete_all

MAPS = "/api/v1/namespaces/agents/configmaps"
POLICIES = "/apis/egressproxy.io/v1alpha1/namespaces/agents/egresspolicies"
OURS = "/apis/egressproxy.io/v1alpha1/namespaces/agents/backends"
THEIRS = "/apis/gateway.networking.k8s.io/v1alpha1/namespaces/agents/backends"
DESTINATIONS = "/apis/ainetworking.prototype.x-k8s.io/v0alpha0/namespaces/agents/xbackenddestinations"
PYTHON = "egressproxy.io/Python:v1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def of_all_tests(folder: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess(
        folder / "gateway",
        [m.gateway(m.forward_listener(free_port()), name="egress")],
        arguments=["--state-dir", str(folder / "state"), "--api-writes"],
    ) as made:
        yield made


@pytest.fixture
def gateway(of_all_tests: GatewayProcess, state: Path) -> Iterator[GatewayProcess]:
    """One for all tests; what a test has written is deleted behind it."""
    yield of_all_tests
    delete_all(of_all_tests, state)
    (state / "trap.py").unlink(missing_ok=True)


@pytest.fixture
def state(folder: Path) -> Path:
    return folder / "state"


def policy(path: str, **config: Any) -> dict[str, Any]:
    made = m.policy(["a.example"], name="evil", target="egress")
    extension = {"name": "x", "type": PYTHON, "phase": "request-headers", "config": {"path": path, **config}}
    made["spec"]["extensions"] = [extension]
    return made


def trap(file: Path) -> str:
    """A filter whose import leaves a trace."""
    return (
        f"open({str(file)!r}, 'w').close()\nfrom egressproxy.filters import Filter\n"
        "class F(Filter):\n    def request_headers(self, x): pass\n"
    )


def test_a_config_map_does_not_become_a_program(gateway: GatewayProcess, state: Path, tmp_path: Path):
    ran = tmp_path / "ran"
    client = Client(gateway)
    # As YAML it is a ConfigMap; as Python it is two statements, the second a text that has the rest in it.
    body = {
        "x": f"1;open('{ran}','w');s='''",
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "evil"},
        "zz": "x'''",
    }
    client.send("POST", MAPS, body)
    (kept,) = state.glob("configmap_*")
    code, answer = client.send("POST", POLICIES, policy(kept.name))
    assert not ran.exists()
    with pytest.raises(SyntaxError):
        compile(kept.read_bytes(), "kept", "exec")
    assert code == 422
    assert "Python" in answer["message"]
    assert "folder" in answer["message"]


@pytest.mark.parametrize("query", ["", "?dryRun=All"])
def test_python_filters_are_for_files_of_the_operator_however_they_are_written(
    gateway: GatewayProcess, state: Path, tmp_path: Path, query: str
):
    ran = tmp_path / "ran"
    (state / "trap.py").write_text(trap(ran))  # by whatever means
    client = Client(gateway)
    evil = policy("trap.py")
    harmless = {**evil, "spec": {key: value for key, value in evil["spec"].items() if key != "extensions"}}
    assert client.send("POST", POLICIES, harmless)[0] == 201
    one = f"{POLICIES}/evil{query}"
    extensions = evil["spec"]["extensions"]
    patch = {"spec": {"extensions": extensions}}
    refused = [
        client.send("POST", f"{POLICIES}{query}", {**evil, "metadata": {"name": "other"}}),
        client.send("PUT", one, evil),
        client.send("PATCH", one, patch, "application/merge-patch+json"),
        client.send("PATCH", one, patch, "application/strategic-merge-patch+json"),
        client.send(
            "PATCH",
            one,
            [{"op": "add", "path": "/spec/extensions", "value": extensions}],
            "application/json-patch+json",
        ),
        client.send("PATCH", f"{one}{'&' if query else '?'}fieldManager=me", evil, "application/apply-patch+yaml"),
    ]
    for code, answer in refused:
        assert code == 422, answer
        assert answer["details"]["causes"][0]["field"] == "spec.extensions[0].type"
        assert "--config" in answer["message"]
    assert not ran.exists()


@pytest.mark.parametrize(
    ("path", "api_version", "kind"),
    [
        (OURS, "egressproxy.io/v1alpha1", "Backend"),
        (THEIRS, "gateway.networking.k8s.io/v1alpha1", "Backend"),
        (DESTINATIONS, "ainetworking.prototype.x-k8s.io/v0alpha0", "XBackendDestination"),
    ],
)
def test_no_kind_of_object_brings_python_in(
    gateway: GatewayProcess, state: Path, tmp_path: Path, path: str, api_version: str, kind: str
):
    ran = tmp_path / "ran"
    (state / "trap.py").write_text(trap(ran))
    extension: dict[str, Any] = {"name": "x", "type": PYTHON}
    if api_version.startswith("egressproxy"):
        spec: dict[str, Any] = {"destination": {"type": "FQDN", "fqdn": {"hostname": "a.example"}}}
        extension |= {"phase": "backend-request", "config": {"path": "trap.py"}}
        spec["destination"]["ports"] = [{"number": 443}]
    else:
        spec = {"destination": {"type": "Fqdn", "fqdn": {"hostname": "a.example"}, "ports": [{"number": 443}]}}
        extension |= {"rawConfig": {"path": "trap.py"}}
    body = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "b"},
        "spec": {**spec, "extensions": [extension]},
    }
    code, answer = Client(gateway).send("POST", path, body)
    assert code == 422
    assert "an object that was written through the API must not" in answer["message"]
    assert not ran.exists()


def test_unknown_fields_of_core_objects_are_not_kept(gateway: GatewayProcess, state: Path):
    client = Client(gateway)
    metadata = {"name": "a", "bogus": 1}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, "more": {"x": 1}}
    code, answer = client.send("POST", f"{MAPS}?fieldValidation=Strict", body)
    assert code == 400
    assert 'strict decoding error: unknown field "metadata.bogus", unknown field "more"' in answer["message"]
    code, answer = client.send("POST", f"{MAPS}?fieldValidation=Warn", body)
    assert code == 201
    assert client.warnings == ['299 - "unknown field \\"metadata.bogus\\""', '299 - "unknown field \\"more\\""']
    assert "more" not in answer
    assert "bogus" not in answer["metadata"]
    assert answer["immutable"] is True
    kept = (state / "configmap_agents_a.yaml").read_text()
    assert "more" not in kept
    assert "bogus" not in kept
    code, _ = client.send("PATCH", f"{MAPS}/a?fieldValidation=Ignore", {"more": 1}, "application/merge-patch+json")
    assert code == 200
    assert client.warnings == []
    assert client.send("POST", f"{MAPS}?fieldValidation=Other", {**body, "metadata": {"name": "b"}})[0] == 400


def test_nothing_of_a_configuration_runs_before_all_of_it_is_valid(tmp_path: Path):
    ran = tmp_path / "ran"
    objects = [m.gateway(m.forward_listener(free_port()), name="egress"), policy("a.py")]
    gateway = GatewayProcess(tmp_path / "gateway", objects)
    (gateway.config / "a.py").write_text(trap(ran))
    (gateway.config / "b.py").write_text("this is no program\n")
    broken = policy("a.py")
    broken["spec"]["extensions"].append({**broken["spec"]["extensions"][0], "name": "y", "config": {"path": "b.py"}})
    gateway.replace([objects[0], broken])
    with pytest.raises(RuntimeError, match="SyntaxError"), gateway:
        pass
    assert not ran.exists()
    gateway.replace(objects)
    with gateway:
        assert ran.exists()


def test_errors_of_a_write_say_nothing_of_files(gateway: GatewayProcess):
    client = Client(gateway)
    there, absent = (
        client.send("POST", POLICIES, policy(path)) for path in ("../gateway/config/manifests.yaml", "no.py")
    )
    assert there == absent


def test_a_tag_makes_no_object(gateway: GatewayProcess):
    assert Client(gateway).raw("POST", MAPS, b"!!python/object/apply:os.system ['true']", JSON)[0] == 400


def backend() -> dict[str, Any]:
    made = m.backend("b", "a.example", 443)
    made["spec"]["extensions"] = [{"name": "x", "type": PYTHON, "phase": "backend-request", "config": {"path": "b.py"}}]
    return made


def test_a_reference_to_an_object_of_the_operator_runs_the_operators_file_and_a_dry_run_nothing(tmp_path: Path):
    ran = tmp_path / "ran"
    port = free_port()
    objects = [m.gateway(m.forward_listener(port), name="egress"), backend()]
    arguments = ["--state-dir", str(tmp_path / "state"), "--api-writes"]
    gateway = GatewayProcess(tmp_path / "gateway", objects, arguments=arguments)
    (gateway.config / "b.py").write_text(trap(ran).replace("request_headers", "backend_request"))
    with gateway:
        client = Client(gateway)
        route = m.http_route("b", m.prefix_rule("/", "b"), parent="egress", hostnames=["a.example"])
        path = "/apis/gateway.networking.k8s.io/v1/namespaces/agents/httproutes"
        assert client.send("POST", f"{path}?dryRun=All", route)[0] == 201
        assert not ran.exists()
        assert client.send("POST", path, route)[0] == 201
        assert ran.exists()


def test_a_folder_of_state_with_a_python_filter_is_refused_at_the_start_with_its_place(tmp_path: Path):
    ran = tmp_path / "ran"
    state = tmp_path / "state"
    state.mkdir()
    (state / "trap.py").write_text(trap(ran))
    (state / "egresspolicy.egressproxy.io_agents_evil.yaml").write_text(json.dumps(policy("trap.py")))
    objects = [m.gateway(m.forward_listener(free_port()), name="egress")]
    gateway = GatewayProcess(tmp_path / "gateway", objects, arguments=["--state-dir", str(state)])
    with pytest.raises(RuntimeError, match=r"agents_evil\.yaml:1:.*declare it in a manifest in a folder of --config"):
        gateway.start()
    assert not ran.exists()
    # As configuration of another command it is the same: the mark lies in the folder.
    program = [sys.executable, "-m", "egressproxy", "check", str(gateway.config), str(state)]
    checked = subprocess.run(program, capture_output=True, text=True, timeout=WAIT_S)
    assert checked.returncode == 1
    assert "written through the API" in checked.stdout
    assert not ran.exists()
