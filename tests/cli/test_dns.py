"""`dns` on a configuration: what is printed, and the exit status."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from egressproxy.cli.main import main
from tests.support import manifests as m
from tests.support.dns import Rule
from tests.support.name_server import NameServer

ALLOWED = {"allow": [{"hostnames": ["*.test"], "ports": [443]}], "deny": [{"hostnames": ["*.evil.test"]}]}


@pytest.fixture(scope="module")
def names() -> Iterator[NameServer]:
    with NameServer({}) as server:
        server.zone |= {
            "a.test": Rule(("b.test.",), ttl=20),
            "b.test": Rule(("93.184.216.34", "10.0.0.1"), ttl=50),
            "led.test": Rule(("x.evil.test.",)),
            "x.evil.test": Rule(("93.184.216.34",)),
            "broken.test": Rule(rcode="SERVFAIL"),
            "api.test": Rule(("93.184.216.35",), authentic=True),
        }
        yield server


@pytest.fixture
def config(tmp_path: Path, names: NameServer) -> Path:
    policy = m.policy(destinations=ALLOWED)
    policy["spec"]["dns"] = {"servers": [names.address], "hosts": {"h.test": ["93.184.216.36"]}}
    objects = [
        m.gateway(m.forward_listener(3128), m.http_listener(8080)),
        policy,
        m.backend("api", "api.test", 8443, tls=True),
        m.http_route("api", m.prefix_rule("/", "api"), section="http"),
    ]
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all(objects))
    return tmp_path


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["dns", *map(str, arguments)])


def places(config: Path, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(invoke(*arguments, "-c", config, "-o", "json").output)["places"]
    return found


def test_a_name_reads_as_what_it_leads_to_and_why(config: Path, names: NameServer):
    result = invoke("a.test", "--config", config)
    assert result.exit_code == 0, result.output
    text = re.sub(r"[0-9.]+ ms", "N ms", result.output.replace(names.address, "SERVER"))
    assert text == (
        "dial        a.test port 443\n"
        "  for       listener agents/gw/forward\n"
        "  dns       asked\n"
        "  kept      nothing\n"
        "  answer    udp://SERVER a.test A, N ms: 93.184.216.34, 10.0.0.1 through b.test (TTL 20 s)\n"
        "  answer    udp://SERVER a.test AAAA, N ms: none (TTL 0 s)\n"
        "  through   b.test\n"
        "  address   dial   93.184.216.34: public\n"
        "  address   refuse 10.0.0.1: private: not allowed\n"
    )


def test_a_name_that_is_denied_is_not_asked_for(config: Path, names: NameServer):
    for name, port in (("other.example", "443"), ("a.evil.test", "443"), ("c.test", "80")):
        (place,) = places(config, name, "--port", port)
        assert (place["verdict"], place["dns"]) == ("refuse", "not asked")
        assert place["error"]["reason"] in ("destination_not_allowed", "destination_denied")
        assert names.asked(name) == 0
    assert invoke("other.example", "-c", config).exit_code == 1


def test_what_is_refused_says_why(config: Path):
    (place,) = places(config, "led.test")
    assert (place["error"]["reason"], place["cnames"]) == ("resolved_denied", ["x.evil.test"])
    assert "leads through x.evil.test" in place["addresses"][0]["why"]
    assert "leads through x.evil.test" in invoke("led.test", "-c", config).output
    (place,) = places(config, "broken.test")
    assert place["error"]["reason"] == "dns_servfail"
    assert all("answered SERVFAIL" in each["failure"] for each in place["answers"])
    (place,) = places(config, "none.test")
    assert (place["error"]["reason"], place["answers"][0]["result"]) == ("dns_nxdomain", "nxdomain")


def test_what_no_server_is_asked_for_is_said(config: Path):
    (place,) = places(config, "h.test")
    assert (place["dns"], place["answers"], place["verdict"]) == ("not asked: dns.hosts has it", [], "dial")


def test_places_are_chosen(config: Path):
    every = places(config, "api.test")
    assert [label for place in every for label in place["for"]] == ["listener agents/gw/forward", "backend agents/api"]
    (place,) = places(config, "api.test", "--backend", "agents/api")
    assert place["for"] == ["backend agents/api"]
    assert place["addresses"][0]["port"] == 8443
    assert place["answers"][0]["authentic"]
    (place,) = places(config, "api.test", "--gateway", "agents/gw")
    assert place["for"] == ["listener agents/gw/forward"]
    assert places(config, "a.test", "--policy", "agents/default")[0]["for"] == ["listener agents/gw/forward"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("a.test", "--backend", "agents/api"), "stands for api.test"),
        (("a.test", "--backend", "agents/none"), "there are agents/api"),
        (("a.test", "--backend", "api"), "NAMESPACE/NAME"),
        (("a.test", "--gateway", "agents/other"), "there are agents/gw"),
        (("a.test", "--policy", "agents/other"), "under policy agents/other"),
        (("192.0.2.1",), "is an address"),
        (("a b",), "is no destination"),
        (("https://a.test/",), "write the host alone, and its port as --port"),
        (("a.test:443",), "write the host alone, and its port as --port"),
        (("a.test", "--as", "robot"), "as 'robot' is not NAMESPACE/SERVICEACCOUNT"),
        (("a.test", "--as", "agents/keys#ci"), "`key` names the client with an API key"),
    ],
)
def test_a_question_without_a_place_is_wrong_usage(config: Path, arguments: tuple[str, ...], told: str):
    result = invoke(*arguments, "-c", config)
    assert (result.exit_code, told in result.output) == (2, True), result.output


def test_a_name_that_some_clients_may_ask_for_is_looked_up_for_these(tmp_path: Path, names: NameServer):
    theirs = m.policy(["a.test"], name="team", subjects=[{"namespace": "team", "serviceAccount": "robot"}])
    everybody = m.policy(["b.test"], dns=names.address)
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all([m.gateway(m.forward_listener(3128)), everybody, theirs]))
    asked = names.asked("a.test")
    assert [place["verdict"] for place in places(tmp_path, "a.test")] == ["refuse"]
    assert names.asked("a.test") == asked
    assert [place["verdict"] for place in places(tmp_path, "a.test", "--as", "team/robot")] == ["dial"]
    assert invoke("a.test", "--as", "team", "-c", tmp_path).exit_code == 2
