"""What a policy allows is counted and logged under the policy and the entry that allows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from egressproxy.config.builtin import open_proxy
from egressproxy.telemetry import metrics as metrics_module
from tests.gateway.conftest import Start
from tests.gateway.kit import ESTABLISHED, GET, OK, OK_PASSED, connect, forward
from tests.support import manifests as m
from tests.support.conversation import Conversation

ALLOW = [
    {"hostnames": ["a.example", "*.pypi.test"], "ports": [80, 443]},
    {"hostnames": ["*.files.pypi.test"]},
    {"cidrs": ["93.184.0.0/16", "93.184.216.0/24"]},
]


def allowing(*allow: dict[str, Any], **more: Any) -> list[m.Manifest]:
    return forward(destinations={"allow": list(allow or ALLOW), **more.pop("lists", {})}, **more)


def get(talk: Conversation, host: str) -> dict[str, Any]:
    """A GET to this host from a client of its own, and its line in the log."""
    client = talk.connect()
    client >> GET.replace(b"a.example", host.encode())
    talk.dialled(host, 80)
    talk.origin.take(rb"GET / .*?\r\n\r\n")
    talk.origin >> OK
    client << OK_PASSED
    return talk.record()


def tunnel(talk: Conversation, authority: str) -> dict[str, Any]:
    client = talk.connect()
    client >> connect(authority)
    host, _, port = authority.rpartition(":")
    talk.dialled(host, int(port))
    client << ESTABLISHED
    client.leaves()
    talk.until(lambda: talk.records[-1:] != [] and talk.records[-1]["kind"] == "tunnel")
    return talk.record()


def decided(record: dict[str, Any]) -> tuple[str, str]:
    return record.get("policy", "-"), record.get("entry", "-")


def counted(talk: Conversation) -> dict[tuple[str, str], int]:
    """Exchanges by policy and entry."""
    found: dict[tuple[str, str], int] = {}
    for labels, series in talk.metrics.gather().series.items():
        if series.requests:
            found[labels[5:]] = found.get(labels[5:], 0) + sum(series.requests.values())
    return found


@pytest.mark.parametrize(
    ("host", "entry"),
    [
        ("a.example", "a.example"),
        ("x.pypi.test", "*.pypi.test"),
        ("a.b.pypi.test", "*.pypi.test"),
        ("x.files.pypi.test", "*.files.pypi.test"),
        ("93.184.216.34", "93.184.0.0/16"),
    ],
)
def test_the_hostname_or_range_that_matched_is_named(converse: Start, host: str, entry: str):
    talk = converse(allowing())
    for record in (get(talk, host), tunnel(talk, f"{host}:443")):
        assert (record["route"], record["backend"]) == ("-", "-")
        assert decided(record) == ("agents/default", entry)
        assert record["rule"] == "EgressPolicy agents/default"
    assert counted(talk) == {("agents/default", entry): 2}
    (series,) = [each for each in talk.metrics.gather().series.values() if each.labels[6] == entry]
    assert series.attempts == {"ok": 2}
    assert series.tunnels_active == 0


def test_plain_http_within_a_tunnel_and_a_tunnel_that_is_open(converse: Start):
    talk = converse(allowing())
    talk.client >> connect("a.example:80")
    talk.client << ESTABLISHED
    talk.client >> b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
    talk.dialled("a.example", 80)
    talk.origin >> OK
    talk.client << OK_PASSED
    assert decided(talk.record()) == ("agents/default", "a.example")
    second = talk.connect()
    second >> connect("a.example:443")
    talk.dialled("a.example", 443)
    second << ESTABLISHED
    open_ = {labels[5:]: each.tunnels_active for labels, each in talk.metrics.gather().series.items()}
    assert open_["agents/default", "a.example"] == 1


def test_what_clients_name_below_a_wildcard_grows_nothing(converse: Start):
    talk = converse(allowing())
    for number in range(30):
        get(talk, f"h{number}.pypi.test")
    assert counted(talk) == {("agents/default", "*.pypi.test"): 30}


def test_of_several_levels_the_most_specific_names_its_entry(converse: Start):
    target = {"group": m.GATEWAY_API, "kind": "Gateway", "name": "gw", "sectionName": "forward"}
    spec = {"targetRefs": [target], "destinations": {"allow": [{"hostnames": ["a.example"]}]}}
    narrow = m.manifest(f"{m.OURS}/v1alpha1", "EgressPolicy", "narrow", "agents", spec=spec)
    talk = converse([*allowing({"hostnames": ["*.example"]}), narrow])
    assert decided(get(talk, "a.example")) == ("agents/narrow", "a.example")


# --- denials ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("host", "reason", "entry"),
    [
        ("b.example", "destination_not_allowed", "-"),
        ("evil.pypi.test", "destination_denied", "evil.pypi.test"),
        ("x.bad.pypi.test", "destination_denied", "*.bad.pypi.test"),
        ("93.184.216.34", "destination_denied", "93.184.216.34/32"),
        ("near.pypi.test", "resolved_denied", "-"),
        ("there.pypi.test", "resolved_denied", "93.184.216.34/32"),
        ("closed.pypi.test", "resolved_denied", "93.184.217.0/24"),
    ],
)
@pytest.mark.parametrize("way", ["GET", "CONNECT"])
def test_a_denial_names_policy_and_entry(converse: Start, host: str, reason: str, entry: str, way: str):
    from ipaddress import ip_address

    deny = [{"hostnames": ["evil.pypi.test", "*.bad.pypi.test"]}, {"cidrs": ["93.184.216.34/32"]}]
    rules = {"allow": [{"cidrs": ["192.168.0.0/16"]}], "deny": [{"cidrs": ["93.184.217.0/24"]}]}
    talk = converse(allowing(lists={"deny": deny}, addresses=rules))
    talk.names.zone["near.pypi.test"] = (ip_address("10.0.0.1"),)
    talk.names.zone["there.pypi.test"] = (ip_address("93.184.216.34"),)
    talk.names.zone["closed.pypi.test"] = (ip_address("93.184.217.9"),)
    talk.client >> (connect(f"{host}:443") if way == "CONNECT" else GET.replace(b"a.example", host.encode()))
    assert talk.client.answer()[3]["reason"] == reason
    record = talk.record()
    assert decided(record) == ("agents/default", entry)
    assert record["rule"] == "EgressPolicy agents/default"
    assert counted(talk) == {("agents/default", entry): 1}
    (series,) = [each for each in talk.metrics.gather().series.values() if each.requests]
    assert series.denied == {reason: 1}


def test_what_no_policy_speaks_of_names_none(converse: Start):
    talk = converse([m.gateway(m.forward_listener(3128))])
    talk.client >> GET
    assert talk.client.answer()[3]["reason"] == "no_policy"
    assert decided(talk.record()) == ("-", "-")
    assert counted(talk) == {("-", "-"): 1}


# --- modes, routes, the built-in gateway ------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["Report", "Open"])
def test_where_a_mode_alone_lets_it_pass_the_mode_is_the_entry(converse: Start, mode: str):
    talk = converse(allowing(mode=mode))
    assert decided(get(talk, "other.example")) == ("agents/default", f"mode: {mode}")
    assert decided(get(talk, "a.example")) == ("agents/default", "a.example")
    assert decided(get(talk, "third.example")) == ("agents/default", f"mode: {mode}")
    assert counted(talk)["agents/default", f"mode: {mode}"] == 2
    would = [record.get("would_deny") for record in talk.records]
    noted = ["destination_not_allowed"] if mode == "Report" else None
    assert would == [noted, None, noted]
    assert talk.records[0]["rule"] == "EgressPolicy agents/default"


def test_the_gateway_that_is_built_in_has_a_mode_and_no_policy(converse: Start):
    talk = converse(open_proxy(3128))
    record = get(talk, "a.example")
    assert decided(record) == ("-", "mode: Open")
    assert "rule" not in record


def test_a_route_is_its_own_name(converse: Start):
    objects = [m.backend("b", "b.example", 80), m.http_route("r", m.prefix_rule("/", "b"), hostnames=["b.example"])]
    talk = converse(allowing() + objects)
    record = get(talk, "b.example")
    assert (record["route"], decided(record)) == ("agents/r", ("-", "-"))
    assert "rule" not in record


def test_the_counters_of_an_entry_go_on_behind_a_reload(converse: Start):
    talk = converse(allowing())
    get(talk, "a.example")
    talk.reload(allowing(*ALLOW[:1], {"hostnames": ["new.example"]}))
    talk.client >> GET
    assert talk.pending_dial() is None, "the pool goes on, too"
    talk.origin.take(rb"GET / .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED
    get(talk, "new.example")
    assert counted(talk) == {("agents/default", "a.example"): 2, ("agents/default", "new.example"): 1}


def test_an_entry_that_is_gone_allows_nothing_though_it_was_used(converse: Start):
    talk = converse(allowing())
    get(talk, "a.example")
    talk.reload(allowing(ALLOW[1]))
    client = talk.connect()
    client >> GET
    assert client.answer()[3]["reason"] == "destination_not_allowed"


def test_beyond_a_bound_new_entries_are_counted_together(converse: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics_module, "MAX_ENTRY_SERIES", 3)
    names = [f"n{number}.example" for number in range(6)]
    talk = converse(allowing({"hostnames": names}))
    for name in names:
        record = get(talk, name)
    found = counted(talk)
    assert found.pop(("agents/default", "_other")) == 3
    assert found == {("agents/default", name): 1 for name in names[:3]}
    assert (record["policy"], record["entry"], record["rule"]) == (
        "agents/default", "_other", "EgressPolicy agents/default",
    )  # fmt: skip


def test_who_asks_for_all_that_is_denied_does_not_hide_what_is_allowed(
    converse: Start, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(metrics_module, "MAX_ENTRY_SERIES", 2)
    denied = [f"n{number}.example" for number in range(5)]
    objects = forward(destinations={"allow": [{"hostnames": ["a.example"]}], "deny": [{"hostnames": denied}]})
    talk = converse(objects)
    for name in denied:
        client = talk.connect()
        client >> GET.replace(b"a.example", name.encode())
        assert client.answer()[3]["reason"] == "destination_denied"
        assert talk.record()["rule"] == "EgressPolicy agents/default"
    get(talk, "a.example")
    found = counted(talk)
    assert found[("agents/default", "a.example")] == 1
    assert found[("agents/default", "_other")] == 3


def test_entries_share_connections_and_the_budget_of_retries(converse: Start):
    talk = converse(allowing({"hostnames": ["a.example"]}, {"hostnames": ["b.example"]}, traffic={"retries": {}}))
    for name in ("a.example", "b.example"):
        get(talk, name)
    defaults = talk.snapshot.ports["127.0.0.1", 3128].first.defaults
    assert defaults is not None
    one, other = (defaults.known[name, 80] for name in ("a.example", "b.example"))
    assert one is not other
    assert one.retries is other.retries
    assert one.retries is not None
    assert one.backends[0].cluster is other.backends[0].cluster


def test_the_examples_of_the_documentation_are_such_lines(converse: Start):
    page = (Path(__file__).parents[2] / "docs" / "access-log.md").read_text()
    denied, allowed = (json.loads(line) for line in page.splitlines() if line.startswith('{"time"'))
    talk = converse(allowing({"hostnames": ["*.pypi.org"]}))
    talk.client >> connect("paste.example:443")
    talk.client.answer()
    assert list(talk.record()) == list(denied)
    assert decided(talk.record()) == (denied["policy"], denied["entry"])
    assert list(get(talk, "files.pypi.org")) == list(allowed)
    assert decided(talk.record()) == (allowed["policy"], allowed["entry"])
