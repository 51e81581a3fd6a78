import itertools

import pytest

from egressproxy.filters.limits.rules import key_text
from egressproxy.filters.testing import exchange
from egressproxy.model.caller_identity import CallerIdentity


def text(*per, header="", model="", **about):
    x = exchange("POST", "https://a.example/v1", **about)
    return key_text(per, header)(x, model)


def test_an_identity_is_a_service_account_and_else_an_address():
    assert text("Identity", identity="agents/writer") == b"agents/writer"
    assert text("Identity", client="192.0.2.7:40000") == text("Identity", client="192.0.2.7:50000") == b"192.0.2.7"
    near = [text("Identity", client=f"[2001:db8::{n}]:1") for n in (1, 2)]
    assert near[0] == near[1] != text("Identity", client="[2001:db8:0:1::1]:1")


def test_who_is_known_by_a_name_is_counted_by_it_from_everywhere():
    x = exchange("GET", "https://a.example/", client="192.0.2.1:1")
    for identity in (
        CallerIdentity(name="https://issuer.test#alice", source="token"),
        CallerIdentity("team", "-", name="alice", source="basic"),
        CallerIdentity("-", "robot", name="https://issuer.test#robot", source="token"),  # of another than robot of team
    ):
        x.identity = identity
        assert key_text(("Identity",))(x, "") == identity.name.encode()


def test_a_service_account_has_no_limit_twice():
    x = exchange("GET", "https://a.example/", client="192.0.2.1:1")
    for name in ("spiffe://cluster.test/ns/team/sa/robot", "system:serviceaccount:team:robot"):
        x.identity = CallerIdentity("team", "robot", name=name)
        assert key_text(("Identity",))(x, "") == b"team/robot"


def test_a_client_behind_another_gateway_is_not_that_gateway():
    x = exchange("GET", "https://a.example/", client="192.0.2.1:1")
    x.identity = CallerIdentity("agents", "-", "10.0.0.9", "egress/outer")
    assert key_text(("Identity",))(x, "") == b"agents 10.0.0.9"


def test_every_line_of_a_field_counts():
    lines = [("X-Team", "a"), ("x-team", "b")]
    assert text("Header", header="X-Team", headers=lines) == b"a,b"
    assert text("Header", header="X-Team") == b""


@pytest.mark.parametrize("per", [("Gateway",), ("Route",), ("Backend",), ("Namespace",), ("Model",)])
def test_each_part_is_what_it_says(per):
    x = exchange("GET", "https://a.example/", identity="ns/sa", backend="b/b")
    x.route = "r/r"
    said = {"Gateway": b"test/gateway", "Route": b"r/r", "Backend": b"b/b", "Namespace": b"ns", "Model": b"gpt"}
    assert key_text(per)(x, "gpt") == said[per[0]]


def test_requests_without_a_route_are_counted_for_each_gateway():
    x = exchange("GET", "https://a.example/")
    assert key_text(("Route",))(x, "") == b"test/gateway -"


def test_no_two_combinations_have_one_text():
    values = ["", "a", "a1:b", "1:a", "ab", "b"]
    texts = {
        text("Header", "Model", header="X-Team", headers={"X-Team": team}, model=model)
        for team, model in itertools.product(values, values)
    }
    assert len(texts) == len(values) ** 2
