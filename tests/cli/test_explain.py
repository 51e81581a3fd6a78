"""`explain` on a configuration: what is printed, and the exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from egressproxy.cli import explanation
from egressproxy.cli.explanation import _amount
from egressproxy.cli.main import main
from tests.support import manifests as m
from tests.support.net import free_port

HOSTS = {"hosts": {"a.example": ["93.184.216.34", "10.0.0.1"]}}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    policy = m.policy(("a.example",))
    policy["spec"]["dns"] = HOSTS
    objects = [
        m.gateway(m.forward_listener(3128)), policy, m.backend("api", "api.example", 443, tls=True),
        m.http_route("api", m.prefix_rule("/v1", "api"), m.prefix_rule("/v1/x", "api"), hostnames=("api.example",)),
    ]  # fmt: skip
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all(objects))
    return tmp_path


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["explain", *map(str, arguments)])


def test_what_is_allowed_is_0_and_reads_in_the_order_of_a_request(config: Path):
    result = invoke("GET", "http://a.example/", "--config", config)
    assert result.exit_code == 0, result.output
    assert result.output == (
        "allowed       GET http://a.example/\n"
        "listener      agents/gw forward: egressproxy.io/forward-proxy on 127.0.0.1 port 3128\n"
        "route         no route matches: policy decides\n"
        "policy        allowed (mode Enforce; agents/default)\n"
        "              allowed by an entry of agents/default: hostnames: a.example\n"
        "backend       - Dynamic a.example:80\n"
        "  dns         not asked: dns.hosts has it\n"
        "  address     dial   93.184.216.34 port 80: public\n"
        "  address     refuse 10.0.0.1 port 80: private: not allowed\n"
        "  tls         none from the gateway\n"
        "  timeouts    requestHeaders 10 s, request none, connect 10 s, tlsHandshake 10 s, backendRequest none, "
        "idle 60 s\n"
        "limits        maxHeadBytes 65536, maxFields 128, maxBufferedBytes 33554432, bufferedBytesPerClient 67108864, "
        "bufferedBytesPerConnection 67108864\n"
    )


def test_the_winner_and_the_runner_up_are_shown(config: Path):
    result = invoke("GET", "https://api.example/v1/x", "-c", config, "--no-dns")
    assert result.exit_code == 0
    assert "route         HTTPRoute agents/api rule 1: api.example, PathPrefix /v1/x\n" in result.output
    assert "runner-up     HTTPRoute agents/api rule 0: api.example, PathPrefix /v1\n" in result.output
    assert "the winner comes first: its path is longer (5 bytes, not 3)\n" in result.output


def test_a_denial_is_1_and_says_what_to_add(config: Path):
    result = invoke("CONNECT", "b.example:443", "--config", config)
    assert result.exit_code == 1
    assert result.output.startswith("denied        CONNECT b.example:443\nwhy           403 destination_not_allowed: ")
    assert 'to do         add {hostnames: ["b.example"], ports: [443]} to destinations.allow\n' in result.output


def test_what_ends_every_request_is_said_once(config: Path):
    result = invoke("GET", "http://127.0.0.1/", "--config", config, "--listener", "forward")
    assert result.exit_code == 1
    assert result.output.count("destination_not_allowed") == 1
    text = (config / "a.yaml").read_text().replace("93.184.216.34", "10.0.0.9")
    (config / "a.yaml").write_text(text)
    result = invoke("GET", "http://a.example/", "--config", config)
    assert (result.exit_code, result.output.count("resolved_denied")) == (1, 1)


def test_a_method_may_be_typed_small(config: Path):
    assert invoke("connect", "a.example:443", "--config", config).output.startswith("allowed       CONNECT a.example")


def test_json_is_the_same_for_machines(config: Path):
    result = invoke("CONNECT", "b.example:443", "--config", config, "-o", "json")
    assert result.exit_code == 1
    assert json.loads(result.output)["error"]["reason"] == "destination_not_allowed"


@pytest.mark.parametrize("arguments", [("GET", "ftp://x"), ("GET",), ("GET", "http://a/", "--as", "me")])
def test_wrong_usage_is_2(config: Path, arguments: tuple[str, ...]):
    assert invoke(*arguments, "--config", config).exit_code == 2


def test_a_configuration_that_is_refused_is_2_with_its_problems(tmp_path: Path):
    (tmp_path / "a.yaml").write_text("apiVersion: v1\nkind: Nonsense\nmetadata: {name: a}\n")
    result = invoke("GET", "http://a.example/", "--config", tmp_path)
    assert result.exit_code == 2
    assert "Nonsense" in result.output


def test_nobody_at_the_admin_address_is_2_and_says_what_to_do():
    result = invoke("GET", "http://a.example/", "--admin", f"127.0.0.1:{free_port()}")
    assert result.exit_code == 2
    assert "does not answer" in result.output
    assert "--config PATH answers by manifests" in result.output
    assert "--admin" in result.output


def test_config_and_admin_together_are_wrong_usage(config: Path):
    assert invoke("GET", "http://a/", "--config", config, "--admin", "127.0.0.1:1").exit_code == 2


def test_connections_of_one_tenant_alone_are_said_as_they_are_written(config: Path):
    clients = [{"cidrs": ["10.0.0.0/8"], "namespace": "agents", "serviceAccount": "worker"}]
    (config / "b.yaml").write_text(yaml.safe_dump(m.policy(identity={"address": {"clients": clients}}, name="who")))
    result = invoke("GET", "https://api.example/v1/x", "-c", config, "--no-dns", "--as", "agents/worker")
    assert "  connections shareTenants false\n" in result.output, result.output


def test_it_shows_what_became_of_a_published_form_and_of_which_group_the_backend_is(config: Path):
    published = {
        "apiVersion": "gateway.networking.k8s.io/v1alpha1",
        "kind": "Backend",
        "metadata": {"name": "api", "namespace": "agents"},
        "spec": {
            "destination": {"type": "FQDN", "fqdn": {"hostname": "other.example", "port": 8443}},
            "tls": {"mode": "SIMPLE", "serverName": "sni.example"},
        },
    }
    listener = m.http_listener(80, name="web")
    ref = {"group": "gateway.networking.k8s.io", "kind": "Backend", "name": "api"}
    objects = [
        m.gateway(listener, name="reverse"),
        m.http_route("theirs", {"backendRefs": [ref]}, hostnames=["theirs.example"], parent="reverse"),
        published,
    ]
    (config / "b.yaml").write_text(yaml.safe_dump_all(objects))
    result = invoke("GET", "http://theirs.example/", "-c", config, "--no-dns", "--listener", "agents/reverse/web")
    assert "backend       agents/api (Backend.gateway.networking.k8s.io) Fqdn other.example:8443\n" in result.output, (
        result.output
    )
    assert "sni.example" in result.output
    found = invoke("GET", "https://api.example/v1/x", "-c", config, "--no-dns", "-o", "json")
    assert json.loads(found.output)["backends"][0]["kind"] == "Backend.egressproxy.io"


def test_endpoints_are_shown_with_their_health():
    backend = {
        "endpoints": [
            {"address": "10.0.0.1:80", "health": "ejected", "outForSeconds": 12.5},
            {"address": "10.0.0.2:80", "health": "healthy"},
        ],
        "openCircuits": ["maxConnections"],
    }
    assert list(explanation._upstream(backend)) == [
        ("  endpoint", "ejected   10.0.0.1:80, for 12.5 s more", "red"),
        ("  endpoint", "healthy   10.0.0.2:80", ""),
        ("  circuits", "open: maxConnections", "red"),
    ]


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (2000.000001, "2000"), (1999.9999999, "2000"), (41, "41"), (0, "0"), (0.5, "0.5"), (12.345678, "12.35"),
        (0.00234567, "0.0023"), (1e7, "10000000"), (0.00001, "0"),
    ],
)  # fmt: skip
def test_what_is_left_of_a_limit_is_a_number_for_people(number: float, shown: str):
    assert _amount(number) == shown
