"""Who a rule of an XAccessPolicy is for. tests/gateway/test_access_policies.py has what it allows."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from egressproxy.ai.filters import access_policy
from egressproxy.ai.filters.access_rules import AccessRule, Rule, refusals
from egressproxy.filters.testing import FilterHarness, exchange
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.net import cooperative

ID = "spiffe://cluster.local/ns/team/sa/robot"
TOKEN = CallerIdentity("team", "robot", name="system:serviceaccount:team:robot", source="token")
CERTIFICATE = CallerIdentity("team", "robot", name=ID, source="certificate")
PARTNER = CallerIdentity("team@partner.example", "robot", name="spiffe://partner.example/ns/team/sa/robot")
OTHER = CallerIdentity("team", "other", name="system:serviceaccount:team:other")
EVERYBODY = (TOKEN, CERTIFICATE, PARTNER, OTHER, ANONYMOUS)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({}, EVERYBODY),
        ({"namespace": "team", "service_account": "robot"}, (TOKEN, CERTIFICATE)),
        ({"spiffe": ID}, (CERTIFICATE,)),
        ({"spiffe": ID, "namespace": "team", "service_account": "robot"}, (TOKEN, CERTIFICATE)),
        ({"spiffe": PARTNER.name}, (PARTNER,)),
        ({"spiffe": "spiffe://cluster.local/agent"}, ()),
    ],
)
def test_a_rule_is_for_these_clients(source: dict[str, str], expected: tuple[CallerIdentity, ...]):
    rule = Rule(AccessRule("r", **source))
    assert tuple(each for each in EVERYBODY if rule.is_from(each)) == expected


def test_expressions_are_asked_of_a_batch_in_turns():
    harness = FilterHarness(
        {"rules": [{"name": "r", "cel": "request.mcp.tool_name == 'a'"}]},
        type="egressproxy.io/AccessPolicy:v1", phase="request-headers",
    )  # fmt: skip
    message = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "a"}}'
    x = exchange("POST", "https://a.example/mcp", {"content-type": "application/json"})
    turns = list[int]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(access_policy, "refusals", lambda *asked: _counted(turns, refusals(*asked)))
        patched.setattr(cooperative, "SLICE_S", 0.0)
        patched.setattr(cooperative, "next_turn", _turn(turns))
        assert harness.run(x, request_body=b"[" + b",".join([message] * 10) + b"]").error is None
    assert turns.count(1) == 10
    assert 0 in turns[turns.index(1) : -1]


def _counted(turns: list[int], found: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for each in found:
        turns.append(1)
        yield each


def _turn(turns: list[int]) -> Callable[[], Coroutine[Any, Any, None]]:
    async def turn() -> None:
        turns.append(0)

    return turn
