"""The dashboard and the alerts in deploy/ name what a gateway really shows, and Prometheus' own tool accepts them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from egressproxy.errors import Reason
from egressproxy.model.exchange import Exchange
from egressproxy.telemetry.event_aggregator import FilterStats
from egressproxy.telemetry.exposition import Exposition
from egressproxy.telemetry.metrics import Metrics
from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get, read_head, terminate, tls_secret
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess
from tests.support.promql import GIVEN, groupings, selectors

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "egressproxy.json").read_text(encoding="utf-8"))
ALERTS: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text(encoding="utf-8"))
PANELS = [each for each in BOARD["panels"] if each["type"] != "row"]
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
CANARY = "canary-of-the-dashboard-test"
#: What it would take a full disk, a server of tokens, or a cluster, to see: tests of these see it.
NOT_SHOWN: dict[str, set[str]] = {
    "egress_audit_lost_total": {"filter"},
    "egress_credential_ready": {"filter", "source"},
    "egress_kubernetes_problems": set(),
}
Shown = dict[str, set[str]]


def named() -> Iterator[tuple[str, str, set[str]]]:
    """Where, an expression, and the labels that a text beside it names."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    for note in BOARD["annotations"]["list"]:
        yield note["name"], note["expr"], set(re.findall(r"\{\{(\w+)\}\}", note["titleFormat"]))
    for variable in BOARD["templating"]["list"][1:]:
        metric, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
        yield f"variable {variable['name']}", metric, {label}
    for rule in RULES:
        texts = " ".join(rule["annotations"].values())
        yield rule["alert"], rule["expr"], set(re.findall(r"\$labels\.(\w+)", texts))


def everything() -> str:
    """A scrape in which each thing that is counted of exchanges has happened once."""
    metrics = Metrics("0")
    series = metrics.series("g", "r", "b")
    for status, reason, denied in (
        (200, Reason.OK, False),
        (403, Reason.NO_ROUTE, True),
        (502, Reason.DNS_ERROR, False),
    ):
        x = Exchange("192.0.2.1:1", "g", "l", 0.0, series=series)
        x.status, x.reason, x.denied, x.ended_at, x.bytes_in, x.grpc_status = status, reason, denied, 1.0, 1, 0
        x.would_deny = [Reason.NO_ROUTE]
        series.observe(x)
    series.attempt(Reason.DNS_ERROR.value)
    series.failover("503")
    series.hedge("won")
    metrics.count_ejection("b", "b:1", "consecutive_5xx")
    metrics.external_auth.count("r", "b", "ok", 0.1)
    metrics.endpoint_sources.append(lambda: [("b", "b:1", "healthy")])
    metrics.circuit_sources.append(lambda: [("b", "requests")])
    metrics.request_sources.append(lambda: [series.labels])
    metrics.parent_sources.append(lambda: [("parent", True)])
    metrics.upstream_sources.append(lambda: [("b", 1, 1, 1)])
    metrics.shed["memory", "low"] = metrics.connections_rejected["connection_limit"] = 1
    metrics.interceptions.results["ok"] = 1
    stats = FilterStats("f", "t", "request-headers", "r", "x", runs=1)
    stats.took(0.1)
    metrics.filter_sources.append(lambda: [stats])
    return Exposition("0").render(metrics.gather())[0].decode()


def shown(text: str) -> Shown:
    """Each metric of a scrape with the labels that its samples have; those without samples have none."""
    found: Shown = {}
    for family in text_string_to_metric_families(text):
        endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        for ending in endings:
            found.setdefault(family.name + ending, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a gateway of two workers shows, behind a request or two of each kind."""
    folder, pki = tmp_path_factory.mktemp("board"), Pki()
    forward, https, front = free_port(), free_port(), pki.issue("front.test")
    (folder / "audit").mkdir()
    answer = (
        b'{"model": "gpt-5", "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}, "choices": []}'
    )

    def extension(name: str, config: object, **more: object) -> m.Manifest:
        return {
            "name": name.lower(),
            "type": f"egressproxy.io/{name}:v1",
            "phase": "request-headers",
            "config": config,
            **more,
        }

    def serve(sock: Any) -> None:
        while read_head(sock):
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            sock.sendall(head % len(answer) + answer)

    with NameServer({"*": ["127.0.0.1"]}) as dns, Origin(serve) as origin:
        budget = {"failures": 9, "window": "9s"}
        store = {"type": "Redis", "backendRef": {"group": "egressproxy.io", "kind": "Backend", "name": "redis"}}
        objects = [
            m.gateway(
                m.forward_listener(forward),
                {"name": "https", "port": https, "protocol": "HTTPS", "tls": terminate("front")},
            ),
            m.policy(
                ["origin.test"], dns=dns.address, cidrs=ALLOW_LOOPBACK,
                limits={"requests": [{"per": "Gateway", "limit": 1000, "window": "1s"}], "store": store},
                extensions=[
                    extension("Audit", {"folder": str(folder / "audit")}),
                    extension("HeaderPolicy", {"request": {"remove": ["X-A"]}}, errorBudget=budget),
                    extension("CanaryKeys", {"secretRefs": [{"name": "canary"}]}),
                    extension("TokenMeter", {"prices": [{"models": ["*"], "input": 1, "output": 1}]}),
                ],
            ),
            m.secret("canary", {"token": CANARY}),
            tls_secret("front", chain(front), front.private_key_pem.bytes()),
            m.backend("redis", "redis.test", free_port(), protocol="TCP"),
            m.backend("o", "origin.test", origin.port),
            m.http_route("r", m.prefix_rule("/", "o"), section="https"),
        ]  # fmt: skip
        with GatewayProcess(folder / "gw", objects, arguments=["--workers", "2"]) as gateway:
            with client(forward) as sock:
                assert ask(sock, get("origin.test", origin.port))[0] == 200
                assert ask(sock, get("denied.test", 80))[0] == 403
                assert ask(sock, get("origin.test", origin.port, path=f"/{CANARY}"))[0] == 403
            with client(forward) as sock:
                sock.sendall(b"CONNECT origin.test:%d HTTP/1.1\r\nHost: origin.test\r\n\r\n" % origin.port)
                assert read_head(sock).startswith(b"HTTP/1.1 200 ")
            body = b'{"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]}'
            with client(https, pki.client_context(), "front.test") as sock:
                sock.sendall(
                    b"POST /v1/chat/completions HTTP/1.1\r\nHost: front.test\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
                )
                assert read_head(sock).startswith(b"HTTP/1.1 200 ")
            return gateway.admin("/metrics")[1]


def test_every_metric_and_label_that_is_named_is_shown(scraped: str):
    real, made = shown(scraped), shown(everything())
    missing = []
    for where, expression, told in named():
        labels_of: list[set[str]] = []
        for metric, matched in selectors(expression):
            labels = NOT_SHOWN.get(metric) or real.get(metric) or made.get(metric) or set()
            if metric not in real and metric not in NOT_SHOWN:
                missing.append((where, metric))
            missing += [(where, metric, label) for label in matched - labels]
            labels_of.append(labels)
        assert labels_of or where == "EgressproxyAbsent", where
        grouped = groupings(expression)
        every = set().union(*labels_of)
        missing += [(where, label) for label in grouped - every]
        missing += [(where, "text", label) for label in told - (grouped or every) - GIVEN]
    assert not missing, missing


def test_the_dashboard_has_a_place_for_each_panel_and_asks_the_chosen_source():
    assert BOARD["schemaVersion"] >= 42
    ids = [each["id"] for each in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    source, *others = BOARD["templating"]["list"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    assert {each["datasource"]["uid"] for each in (*PANELS, *others)} == {"${" + source["name"] + "}"}
    assert all(target["datasource"]["uid"] == "${datasource}" for each in PANELS for target in each["targets"])
    for one, other in combinations([each["gridPos"] for each in BOARD["panels"]], 2):
        apart = [one[at] + one[size] <= other[at] or other[at] + other[size] <= one[at] for at, size in ("xw", "yh")]
        assert any(apart), (one, other)


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        if os.environ.get("EGRESSPROXY_CLIENTS") == "required":
            pytest.fail("promtool is not here: apt-get install prometheus")
        pytest.skip("promtool is not here: apt-get install prometheus")
    return found


@pytest.mark.parametrize("what", [("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")])
def test_promtool_accepts_the_alerts(promtool: str, what: tuple[str, ...]):
    done = subprocess.run([promtool, *what], cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_parses_each_query_of_the_dashboard(promtool: str, tmp_path: Path):
    written = {"groups": [{"name": "board", "rules": []}]}
    for number, (_, expression, _) in enumerate(named()):
        expression = re.sub(r"\$__rate_interval", "5m", expression)
        written["groups"][0]["rules"].append({"record": f"query_{number}", "expr": expression})  # type: ignore[index, attr-defined]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump(written))
    done = subprocess.run(
        [promtool, "check", "rules", "queries.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_nothing_wrong_with_a_scrape(promtool: str, scraped: str):
    done = subprocess.run([promtool, "check", "metrics"], input=scraped, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
