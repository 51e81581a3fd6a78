"""A real kubectl against the admin address."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.support import manifests as m
from tests.support.kubectl import find_kubectl
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, wait_until

Kubectl = Callable[..., str]
DESTINATION = {
    "type": "Fqdn",
    "fqdn": {"hostname": "api.example.com"},
    "ports": [{"number": 443, "tls": {"mode": "Simple"}}],
}


def objects(port: int, *hostnames: str) -> list[m.Manifest]:
    labelled = m.gateway(m.forward_listener(port), name="egress")
    labelled["metadata"]["labels"] = {"team": "red"}
    route = m.manifest(
        f"{m.GATEWAY_API}/v1", "HTTPRoute", "models", "agents",
        spec={"parentRefs": [{"name": "egress"}], "hostnames": list(hostnames)},
    )  # fmt: skip
    backends = [
        m.manifest(f"{group}/v1alpha1", "Backend", name, "agents", spec={"destination": DESTINATION})
        for group, name in (("egressproxy.io", "ours"), (m.GATEWAY_API, "theirs"))
    ]
    return [labelled, route, m.policy(["a.example"], name="outbound"), m.secret("key", {"token": "CANARY"}), *backends]


def command(gateway: GatewayProcess, home: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    clean = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    program = [find_kubectl(), "--server", f"http://127.0.0.1:{gateway.admin_port}"]
    return [*program, *arguments], {**clean, "HOME": str(home), "KUBECONFIG": ""}


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("gateway"), objects(port, "a.example")) as started:
        yield started


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def kubectl(gateway: GatewayProcess, home: Path) -> Kubectl:
    def run(*arguments: str) -> str:
        program, environment = command(gateway, home, *arguments)
        done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()]


def test_get_prints_the_columns_of_the_kind(kubectl: Kubectl):
    head, row = rows(kubectl("get", "gw", "-n", "agents"))
    assert head == ["NAME", "CLASS", "ADDRESS", "PROGRAMMED", "AGE"]
    assert row[:4] == ["egress", "egressproxy", "127.0.0.1", "True"]
    assert re.fullmatch(r"[0-9]+[smh]", row[4])


def test_get_wide_prints_more_of_them(kubectl: Kubectl, port: int):
    head, row = rows(kubectl("get", "gateways", "-n", "agents", "-o", "wide"))
    assert head[-2:] == ["LISTENERS", "ROUTES"]
    assert row[-2:] == [f"forward:{port}", "1"]


def test_get_gives_objects_as_yaml_json_and_names(kubectl: Kubectl):
    as_yaml = yaml.safe_load(kubectl("get", "gateway", "egress", "-n", "agents", "-o", "yaml"))
    assert as_yaml["status"]["addresses"] == [{"type": "IPAddress", "value": "127.0.0.1"}]
    as_json = json.loads(kubectl("get", "egresspolicies", "-A", "-o", "json"))
    assert [item["metadata"]["name"] for item in as_json["items"]] == ["outbound"]
    assert kubectl("get", "gw,httproutes", "-A", "-o", "name").split() == [
        "gateway.gateway.networking.k8s.io/egress",
        "httproute.gateway.networking.k8s.io/models",
    ]


def test_describe_tells_status_in_words(kubectl: Kubectl):
    told = kubectl("describe", "gateway", "egress", "-n", "agents")
    assert "Attached Routes:  1" in told
    assert "Controller Name:" in kubectl("describe", "httproute", "models", "-n", "agents")


def test_a_secret_is_never_told(kubectl: Kubectl):
    everything = kubectl("get", "secrets", "-A", "-o", "yaml") + kubectl("describe", "secrets", "-A")
    assert "token" in everything
    assert "CANARY" not in everything
    assert "Q0FOQVJZ" not in everything


def test_explain_knows_our_schemas(kubectl: Kubectl):
    told = kubectl("explain", "gateway.spec.listeners")
    assert "FIELDS" in told
    assert all(field in told for field in ("allowedRoutes", "hostname", "protocol"))
    assert "destinations" in kubectl("explain", "egresspolicy.spec")


def test_a_backend_is_ours_and_those_of_other_groups_are_asked_for_by_their_group(kubectl: Kubectl):
    assert kubectl("get", "backends", "-A", "-o", "name").split() == ["backend.egressproxy.io/ours"]
    of_others = kubectl("get", "backends.gateway.networking.k8s.io", "-A", "-o", "name")
    assert of_others.split() == ["backend.gateway.networking.k8s.io/theirs"]
    assert kubectl("explain", "backend.spec.parent").startswith("GROUP:      egressproxy.io\n")
    assert "egressproxy.io" not in kubectl("explain", "backends", "--api-version", f"{m.GATEWAY_API}/v1alpha1")


def test_without_api_writes_kubectl_is_told_what_to_start_the_gateway_with(gateway: GatewayProcess, home: Path):
    manifest = home / "map.yaml"
    manifest.write_text(yaml.safe_dump(m.config_map("new", {"a": "b"})))
    for verb in (("apply", "-f"), ("create", "-f"), ("apply", "--server-side", "-f")):
        program, environment = command(gateway, home, *verb, str(manifest))
        done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert "started without --api-writes" in done.stderr
        assert "--state-dir DIR --api-writes" in done.stderr


def test_resources_and_versions_are_discovered(kubectl: Kubectl):
    found = {row[-1]: row for row in rows(kubectl("api-resources"))}
    assert found["Gateway"] == ["gateways", "gtw,gw", "gateway.networking.k8s.io/v1", "true", "Gateway"]
    assert found["GatewayClass"][-2] == "false"
    assert {"v1", "egressproxy.io/v1alpha1", "gateway.networking.k8s.io/v1beta1"} <= set(
        kubectl("api-versions").split()
    )


def test_an_object_that_is_not_there_is_said_so(gateway: GatewayProcess, home: Path):
    program, environment = command(gateway, home, "get", "gateway", "nope")
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 1
    assert 'gateways.gateway.networking.k8s.io "nope" not found' in done.stderr


def test_age_is_that_of_the_file_and_stays_when_the_file_is_written_again(tmp_path: Path, home: Path):
    gateway = GatewayProcess(tmp_path / "gateway", objects(free_port(), "a.example"))
    file = gateway.config / "manifests.yaml"
    five_days_ago = time.time() - 5 * 86400 - 60
    os.utime(file, (five_days_ago, five_days_ago))
    with gateway:

        def shown(*arguments: str) -> str:
            program, environment = command(gateway, home, "get", "httproute", "models", "-n", "agents", *arguments)
            done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            return done.stdout

        def versions() -> tuple[object, ...]:
            metadata = json.loads(shown("-o", "json"))["metadata"]
            return tuple(metadata[name] for name in ("creationTimestamp", "resourceVersion", "generation"))

        assert rows(shown())[1][-1] == "5d"
        before = versions()
        os.utime(file)
        gateway.wait_for_metric("egress_config_generation", 2)
        assert rows(shown())[1][-1] == "5d"
        assert versions() == before
        gateway.replace(objects(free_port(), "changed.example"))
        gateway.wait_for_metric("egress_config_generation", 3)
        assert rows(shown())[1][-1] == "5d"
        created, version, generation = versions()
        assert created == before[0]
        assert version != before[1]
        assert generation == 2


def test_a_watch_shows_a_change_by_reload_and_ends_when_the_gateway_drains(tmp_path: Path, home: Path):
    port = free_port()
    gateway = GatewayProcess(tmp_path / "gateway", objects(port, "a.example"))
    with gateway:
        program, environment = command(gateway, home, "get", "httproutes", "-n", "agents", "-w")
        seen = tmp_path / "seen"
        with seen.open("w") as output:
            watcher = subprocess.Popen(program, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: "a.example" in seen.read_text())
            gateway.replace(objects(port, "changed.example"))
            wait_until(lambda: "changed.example" in seen.read_text())
            assert gateway.stop() == 0
        finally:
            watcher.terminate()
            watcher.wait(WAIT_S)
