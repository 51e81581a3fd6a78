"""Requests that wait for a person, through the real data plane."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from egressproxy.config.reading.problems import ConfigError
from egressproxy.errors import Denied, LimitExceeded
from egressproxy.filters.base import FilterContext
from egressproxy.filters.shared_counters import SharedCounters
from egressproxy.model.admin_requests import HoldDecision, HoldPage
from egressproxy.model.authority import Authority
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead
from egressproxy.model.per_client_quota import identity_of
from egressproxy.operators.approval.approval_hold import ApprovalHold, ApprovalHoldConfig, holds
from egressproxy.telemetry.filter_meter import FilterMeter, FilterMetrics
from tests.config.compile.kit import FORWARD, compiled, policy
from tests.gateway.conftest import Start
from tests.gateway.h2 import speak_http2
from tests.gateway.kit import GET, GET_SENT, OK, OK_PASSED, connect, forward
from tests.support import manifests as m
from tests.support.conversation import Conversation, Peer

TYPE = "egressproxy.io/ApprovalHold:v1"
BODY = b'{"amount": 5}'
POST = b"POST http://a.example/pay?key=secret HTTP/1.1\r\nHost: a.example\r\nContent-Length: 13\r\n\r\n" + BODY
KNOWN = {"address": {"clients": [{"cidrs": ["10.0.0.9/32"], "namespace": "agents", "serviceAccount": "worker"}]}}


def held(converse: Start, **config: Any) -> Conversation:
    extension = {"name": "hold", "type": TYPE, "config": config}
    return converse(forward(identity=KNOWN, extensions=[extension], traffic={"timeouts": {"idle": "2s"}}))


def waiting(talk: Conversation) -> list[dict[str, Any]]:
    talk.settle()
    found: list[dict[str, Any]] = holds(talk.snapshot.filters.of_type(TYPE), None)["holds"]
    return found


def decide(talk: Conversation, key: str, *, approves: bool, why: str = "") -> int:
    decided: list[int] = []
    decision = HoldDecision(key, approves, "alice", why)
    talk.act(lambda: decided.append(holds(talk.snapshot.filters.of_type(TYPE), decision)["decided"]))
    talk.settle()
    return decided[0]


def refused(client: Peer) -> Any:
    status, _, _, error = client.answer()
    return status, error["reason"]


def test_a_request_waits_is_approved_and_goes_on_alone(converse: Start):
    talk = held(converse)
    talk.client >> POST
    (hold,) = waiting(talk)
    talk.no_dial()
    assert (hold["identity"], hold["method"], hold["authority"], hold["path"], hold["bodyBytes"]) == (
        "system:serviceaccount:agents:worker", "POST", "a.example:80", "/pay", 13,
    )  # fmt: skip
    assert hold["bodySha256"] == hashlib.sha256(BODY).hexdigest()
    assert "secret" not in json.dumps(hold)
    assert decide(talk, hold["id"], approves=True) == 1
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST /pay\?key=secret .*?\r\n\r\n" + BODY.replace(b"{", rb"\{").replace(b"}", rb"\}"))
    talk.origin >> OK
    talk.client << OK_PASSED
    assert talk.record()["approval"]["by"] == "alice"
    talk.client >> POST  # the same again waits again
    (other,) = waiting(talk)
    assert other["requestSha256"] == hold["requestSha256"]
    assert decide(talk, hold["id"], approves=True) == 0
    assert decide(talk, other["id"], approves=False) == 1
    assert refused(talk.client) == (403, "approval_denied")
    assert waiting(talk) == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 307 Elsewhere\r\nLocation: http://b.example/\r\nContent-Length: 0\r\n\r\n", "status 307"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", "status 500"),
        (None, "upstream_closed"),
    ],
    ids=["redirects", "fails", "breaks off"],
)
def test_where_the_webhook_fails_the_request_waits_all_the_same_and_an_event_tells_of_it(
    converse: Start, answer: bytes | None, why: str
):
    config = {"webhook": {"group": m.OURS, "kind": "Backend", "name": "hook"}, "webhookPath": "/teams/a?room=on-call"}
    extension = {"name": "hold", "type": TYPE, "config": config}
    talk = converse(forward(m.backend("hook", "hook.example", 9000), identity=KNOWN, extensions=[extension]))
    talk.expects_failures = True
    talk.client >> GET
    hook = talk.dialled("hook.example", 9000)
    assert b"egress.approval.requested" in hook.take(rb"POST /teams/a\?room=on-call HTTP/1.1\r\n.*?\r\n\r\n\{.*\}")[0]
    if answer is None:
        hook.leaves()
    else:
        hook >> answer
    (hold,) = waiting(talk)
    (notice,) = [each for each in talk.metrics.notices.take() if each.reason == "ApprovalWebhookFailed"]
    assert why in notice.message
    assert decide(talk, hold["id"], approves=True, why="told by telephone") == 1
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED
    assert talk.record()["approval"]["why"] == "told by telephone"


def test_a_request_may_be_quiet_for_as_long_as_it_waits(converse: Start):
    talk = held(converse)
    talk.client >> GET
    (hold,) = waiting(talk)
    talk.after(30)  # far beyond `idle`
    assert decide(talk, hold["id"], approves=True) == 1
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED


def test_other_requests_of_the_connection_may_not_be_quiet_meanwhile(converse: Start):
    talk = held(converse, methods=["GET"])
    client = speak_http2(talk)
    held_back = client.ask()
    stalls = client.ask(b"POST", body=b"some", ends=False)
    talk.dialled("a.example", 80)
    talk.after(10)
    client.settle()
    assert client.of(stalls).status == 504
    (hold,) = waiting(talk)
    assert decide(talk, hold["id"], approves=False) == 1
    client.settle()
    assert client.of(held_back).status == 403


def test_who_does_not_decide_in_time_has_denied(converse: Start):
    talk = held(converse, timeout="1s")
    talk.client >> GET
    assert len(waiting(talk)) == 1
    assert refused(talk.client) == (403, "approval_denied")
    assert talk.record()["approval"]["outcome"] == "timeout"


def test_who_denies_has_denied_whatever_the_reason_is_called(converse: Start):
    talk = held(converse)
    talk.client >> GET
    (hold,) = waiting(talk)
    decide(talk, hold["id"], approves=False, why="time")
    assert refused(talk.client) == (403, "approval_denied")
    assert talk.record()["approval"]["outcome"] == "denied"


def test_a_client_that_leaves_takes_its_request_with_it(converse: Start):
    talk = held(converse)
    talk.client >> GET
    (hold,) = waiting(talk)
    talk.client.leaves()
    assert waiting(talk) == []
    assert decide(talk, hold["id"], approves=True) == 0
    talk.no_dial()


@pytest.mark.parametrize("request_", [GET, POST, connect("a.example:443")], ids=["head", "body", "tunnel"])
def test_a_client_that_ends_its_side_while_a_person_is_asked_has_left(converse: Start, request_: bytes):
    extension = {"name": "hold", "type": TYPE, "config": {"timeout": "5m"}}
    talk = converse(forward(identity=KNOWN, extensions=[extension]))
    talk.client >> request_
    assert len(waiting(talk)) == 1
    talk.client.ends()
    assert talk.until(lambda: talk.client.has_eof or talk.client.is_gone)
    assert waiting(talk) == []
    assert talk.record()["reason"] == "client_gone"
    talk.no_dial()


def test_a_tunnel_waits_before_it_is_there(converse: Start):
    talk = held(converse)
    talk.client >> connect("a.example:443")
    (hold,) = waiting(talk)
    assert (hold["method"], hold["authority"]) == ("CONNECT", "a.example:443")
    talk.no_dial()
    decide(talk, hold["id"], approves=False)
    assert refused(talk.client) == (403, "approval_denied")


def test_waiting_is_bounded_for_each_client_and_for_all(converse: Start):
    talk = held(converse, maxWaiting=2, maxWaitingPerClient=1)
    talk.client >> GET
    assert len(waiting(talk)) == 1
    second = talk.connect()
    second >> GET
    assert refused(second) == (429, "approval_limit")
    other = talk.connect(address="10.0.0.8")
    other >> GET
    assert len(waiting(talk)) == 2
    third = talk.connect(address="10.0.0.7")
    third >> GET
    assert refused(third) == (429, "approval_limit")


def test_many_that_wait_are_told_page_by_page(converse: Start):
    talk = held(converse, maxWaitingPerClient=10, timeout="5m")
    clients = [talk.client, *(talk.connect() for _ in range(6))]
    for client in clients:
        client >> GET
    talk.settle()
    filters = talk.snapshot.filters.of_type(TYPE)
    every = [each["id"] for each in holds(filters, None)["holds"]]
    assert len(every) == 7
    found, page, lefts = [], HoldPage(3), []
    while True:
        told = holds(filters, None, page)
        assert told["waiting"] == 7
        lefts.append(told["behind"])
        found += [each["id"] for each in told["holds"]]
        if not told["behind"]:
            break
        last = told["holds"][-1]
        page = HoldPage(3, (last["deadline"], last["id"]))
    assert (found, lefts) == (every, [4, 1, 0])
    for key in every:
        decide(talk, key, approves=False)
    assert holds(filters, None)["waiting"] == 0


def test_waiting_is_bounded_over_all_workers(tmp_path: Path):
    """Two filters of the same spec, as two workers have them, on one memory."""
    with (tmp_path / "memory").open("wb+") as file:
        counters = [SharedCounters(file.fileno(), 2, worker) for worker in (1, 2)]
        asyncio.run(_two_workers(counters))


async def _two_workers(counters: list[SharedCounters]) -> None:
    config = ApprovalHoldConfig(max_waiting=3, max_waiting_per_client=2)
    meter = FilterMeter(FilterMetrics(), "hold", TYPE)
    one, two = (
        ApprovalHold(
            FilterContext(config, {}, "hold", "", "", meter=meter, row=each.row(bytes(16)), keyed=each.keyed)
        )
        for each in counters
    )  # fmt: skip

    async def begun(hold: ApprovalHold, address: str) -> asyncio.Task[None]:
        x = Exchange(f"{address}:5000", "agents/gw", "http", 0.0, ANONYMOUS)
        x.request, x.method, x.path = RequestHead(b"GET", b"/", Fields()), b"GET", b"/"
        x.authority = Authority("a.example", 80)
        waiting = hold.request_headers(x)
        assert waiting is not None
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(0)
        return task

    async def refused(hold: ApprovalHold, address: str) -> None:
        with pytest.raises(LimitExceeded):
            await (await begun(hold, address))

    first, second = await begun(one, "10.0.0.1"), await begun(two, "10.0.0.1")
    await refused(one, "10.0.0.1")
    await refused(two, "10.0.0.1")
    third = await begun(two, "10.0.0.2")
    await refused(one, "10.0.0.3")
    one.close()
    with pytest.raises(Denied):
        await first
    fourth = await begun(two, "10.0.0.1")
    await refused(two, "10.0.0.3")
    counters[0].forget(2)  # the second worker has ended, and another begins
    fresh = ApprovalHold(
        FilterContext(config, {}, "hold", "", "", meter=meter, row=counters[0].row(bytes(16)), keyed=counters[0].keyed)
    )  # fmt: skip
    fifth, sixth = await begun(fresh, "10.0.0.1"), await begun(fresh, "10.0.0.1")
    for task in (second, third, fourth, fifth, sixth):
        task.cancel()
    await asyncio.gather(second, third, fourth, fifth, sixth, return_exceptions=True)


def test_only_what_is_meant_waits(converse: Start):
    talk = held(converse, hostnames=["*.other.example"], methods=["POST"])
    talk.client >> GET
    talk.dialled("a.example", 80)
    assert waiting(talk) == []


@pytest.mark.parametrize("method", [b"POST", b"post", b"PoSt"])
def test_a_method_is_meant_in_every_spelling(converse: Start, method: bytes):
    """Some servers read them as one."""
    talk = held(converse, methods=["post"])
    talk.client >> POST.replace(b"POST", method)
    (hold,) = waiting(talk)
    assert hold["method"] == method.decode()
    talk.no_dial()


@pytest.mark.parametrize("field", [b"X-HTTP-Method-Override", b"x-http-method", b"X_HTTP_Method_Override"])
def test_a_method_that_a_field_says_is_meant_as_well(converse: Start, field: bytes):
    talk = held(converse, methods=["DELETE"])
    talk.client >> POST.replace(b"Content-Length", field + b": delete\r\nContent-Length")
    assert len(waiting(talk)) == 1
    talk.no_dial()


def test_a_reload_that_takes_the_filter_away_denies(converse: Start):
    talk = held(converse)
    talk.client >> GET
    assert len(waiting(talk)) == 1
    talk.reload(forward(identity=KNOWN))
    assert refused(talk.client) == (403, "approval_denied")


@pytest.mark.parametrize(
    ("body", "tool"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay"}}', "pay"),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"Pay"}}', "Pay"),
        (
            b'[{"jsonrpc":"2.0","id":1,"method":"ping"},'
            b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"pay"}}]', "pay",
        ),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"look","name":"pay"}}', "?"),
        (b"no json", "?"),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"look","Name":"pay"}}', "?"),
        (b'{"jsonrpc":"2.0","id":1,"METHOD":"tools/call","params":{"name":"pay"}}', "?"),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","param\\u017f":{"name":"pay"}}', "?"),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"look","arguments":{"Name":1}}}', None),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"look"}}', None),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}', None),
    ],
)  # fmt: skip
def test_calls_of_some_tools_wait(converse: Start, body: bytes, tool: str | None):
    talk = held(converse, tools=["pay"])
    head = b"POST http://a.example/mcp HTTP/1.1\r\nHost: a.example\r\nContent-Type: application/json\r\n"
    talk.client >> head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    assert [each["tool"] for each in waiting(talk)] == ([] if tool is None else [tool])
    if tool is None:
        talk.dialled("a.example", 80)


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [("approve", "")],
        [("approve", "a"), ("deny", "a")],
        [("approve", "a"), ("approve", "b")],
        [("id", "a")],
        [("deny", "a\n")],
        [("deny", "a"), ("why", "x" * 257)],
    ],
)
def test_a_decision_says_what_of_which(pairs: list[tuple[str, str]]):
    with pytest.raises(ValueError, match=r"."):
        HoldDecision.of(pairs)
    assert HoldDecision.of([("deny", "a"), ("by", "b")]) == HoldDecision("a", approves=False, by="b")
    assert HoldDecision.of([("deny", "a"), ("why", "\x1b[31m no\r\n\u202ebody ")]).why == "[31m no body"


def test_a_service_account_has_one_share_and_sees_its_own_by_whatever_it_was_shown():
    by_token = CallerIdentity("agents", "worker", name="system:serviceaccount:agents:worker", source="token")
    by_certificate = by_token.replace(name="spiffe://a.test/ns/agents/sa/worker", source="certificate")
    named_like_an_address = CallerIdentity(name="10.0.0.9", source="basic")

    def request(identity: CallerIdentity) -> Exchange:
        x = Exchange("10.0.0.9:5000", "agents/gw", "http", 0.0, identity)
        x.request, x.method, x.path = RequestHead(b"GET", b"/", Fields()), b"GET", b"/"
        x.authority = Authority("a.example", 80)
        return x

    async def talk() -> None:
        meter = FilterMeter(FilterMetrics(), "hold", TYPE)
        config = ApprovalHoldConfig(max_waiting_per_client=1)
        hold = ApprovalHold(FilterContext(config, {}, "hold", "", "", meter=meter))

        async def begun(identity: CallerIdentity) -> asyncio.Task[None]:
            task = asyncio.create_task(wait(hold, request(identity)))
            await asyncio.sleep(0)
            return task

        first = await begun(by_token)
        with pytest.raises(LimitExceeded):
            await (await begun(by_certificate))
        stranger = await begun(ANONYMOUS)
        for identity, count in ((by_token, 1), (by_certificate, 1), (named_like_an_address, 0)):
            assert len(hold.waiting(HoldPage(identity=identity_of(request(identity))))[1]) == count
        assert len(hold.waiting(HoldPage())[1]) == 2
        hold.close()
        for task in (first, stranger):
            with pytest.raises(Denied, match="the configuration changed"):
                await task

    async def wait(hold: ApprovalHold, x: Exchange) -> None:
        waiting = hold.request_headers(x)
        assert waiting is not None
        await waiting

    asyncio.run(talk())


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ({"hostnames": ["https://a.example"]}, "malformed host name"),
        ({"hostnames": ["*.10.0.0.1"]}, "addresses have no wildcard"),
        ({"timeout": "25h"}, "more than a day"),
        ({"timeout": "0s"}, "nobody can approve in no time"),
        ({"timeout": "5"}, "is not a duration"),
        ({"webhookPath": "holds"}, "is not a path"),
    ],
)
def test_what_cannot_be_meant_is_refused(written: dict[str, Any], why: str):
    extension = json.dumps({"name": "hold", "type": TYPE, "config": written})
    with pytest.raises(ConfigError, match=why):
        compiled(FORWARD, policy(f"extensions: [{extension}]"))
