"""Filters call backends of their own: over the pools, under the policies and with the extensions of those backends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from egressproxy.config.compile.interface import Defaults
from egressproxy.config.reading.load import load_text
from egressproxy.errors import Reason
from egressproxy.filters import Exchange, Filter, Rejected
from egressproxy.filters.calls import CallAnswer, CallFailed, FilterCall
from egressproxy.filters.catalog import Catalog
from egressproxy.gateway.builders.snapshot_builder import SnapshotBuilder
from egressproxy.ir.policy import ExtensionIR
from egressproxy.ir.route import WeightedBackend
from tests.gateway.conftest import Start
from tests.gateway.kit import OK, OK_PASSED, reverse
from tests.support import manifests as m
from tests.support.compiling import compile_valid
from tests.support.conversation import Conversation, compiled_spec, scripted_filter, scripted_type
from tests.support.manifests import Manifest

GET = b"GET /x HTTP/1.1\r\nHost: app.example\r\n\r\n"
FORWARDED = b"GET /x HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\n\r\n"
JUDGE = {"group": m.OURS, "kind": "Backend", "name": "judge"}
ASKED = (
    b"POST /judge?v=1 HTTP/1.1\r\nHost: judge.example:9000\r\nx-why: test\r\nVia: 1.1 gw\r\n"
    b"Content-Length: 5\r\n\r\nhello"
)
ASKED_AT_ALL = rb"POST /judge.*hello"


class Asks(Filter):
    """Asks its backend once for each request."""

    calls: Mapping[str, FilterCall]

    def __init__(self, timeout_s: float = 5.0) -> None:
        self.timeout_s = timeout_s
        self.answers: list[CallAnswer] = []
        self.failures: list[CallFailed] = []

    async def request_headers(self, x: Exchange) -> None:
        (call,) = self.calls.values()
        try:
            answer = await call.request(
                b"POST", b"/judge?v=1", [(b"x-why", b"test")], b"hello", timeout_s=self.timeout_s, x=x
            )
        except CallFailed as failed:
            self.failures.append(failed)
            raise
        self.answers.append(answer)
        if answer.status != 200:
            raise Rejected("the judge says no")


def judged(
    *, judge: Manifest | None = None, ref: Mapping[str, Any] = JUDGE, fail_open: bool = False, **sections: Any
) -> Any:
    asking = scripted_filter("asks", calls=[dict(ref)], failOpen=fail_open)
    server = judge or m.backend("judge", "judge.example", 9000)
    return reverse(objects=(server,), extensions=[asking], **sections)


def answer(body: bytes = b"fine", status: bytes = b"200 OK", more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n%s" % (status, more, len(body), body)


def goes_on(talk: Conversation) -> None:
    talk.dialled("a.example", 80)
    talk.origin << FORWARDED
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_filter_asks_its_backend_over_a_pool_and_the_call_is_counted(converse_on: Start):
    asks = Asks()
    talk = converse_on(judged(), filters={"asks": asks})
    talk.client >> GET
    talk.dialled("judge.example", 9000)
    talk.origin << ASKED
    judge = talk.origin
    judge >> answer()
    goes_on(talk)
    origin = talk.origin
    talk.client >> GET  # on the connection that was used before
    judge << ASKED
    judge >> answer()
    origin << FORWARDED
    origin >> OK
    talk.client << OK_PASSED
    assert [(each.status, each.body) for each in asks.answers] == [(200, b"fine")] * 2
    assert talk.metrics.filter_calls.asked == {("asks", "agents/judge", "ok"): 2}


class Talks(Filter):
    """Opens a connection to its backend for each request, and says something that is no HTTP."""

    calls: Mapping[str, FilterCall]

    def __init__(self) -> None:
        self.failures: list[CallFailed] = []

    async def request_headers(self, x: Exchange) -> None:
        (call,) = self.calls.values()
        reader = asyncio.StreamReader()
        try:
            transport = await call.open(asyncio.StreamReaderProtocol(reader), timeout_s=5.0)
        except CallFailed as failed:
            self.failures.append(failed)
            raise
        transport.write(b"PING\r\n")
        assert await reader.readline() == b"+PONG\r\n"
        transport.abort()


def test_a_filter_opens_a_connection_for_what_is_no_http(converse_on: Start):
    talk = converse_on(judged(), filters={"asks": Talks()})
    talk.client >> GET
    talk.dialled("judge.example", 9000)
    talk.origin << b"PING\r\n"
    talk.origin >> b"+PONG\r\n"
    goes_on(talk)
    assert talk.metrics.filter_calls.asked == {("asks", "agents/judge", "ok"): 1}


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"destinations": {"deny": [{"hostnames": ["judge.example"]}]}}, Reason.DESTINATION_DENIED),
        ({"addresses": {"deny": [{"cidrs": ["0.0.0.0/0", "::/0"]}]}}, Reason.ADDRESS_DENIED),
    ],
)
def test_a_connection_that_policy_denies_is_not_opened(converse: Start, sections: Any, reason: Reason):
    talks = Talks()
    talk = converse(judged(**sections), filters={"asks": talks})
    talk.client >> GET
    talk.client.take(rb"HTTP/1.1 502 .*filter asks failed.*")
    assert [failed.reason for failed in talks.failures] == [reason]
    assert not talk.origins


def test_a_client_that_leaves_while_a_connection_is_opened_ends_that(converse: Start):
    talk = converse(judged(), filters={"asks": Talks()})
    talk.client >> GET
    assert talk.pending_dial() is not None
    talk.client.leaves()
    talk.until(lambda: bool(talk.metrics.filter_calls.asked))
    assert talk.metrics.filter_calls.asked == {("asks", "agents/judge", "cancelled"): 1}


def test_an_answer_of_any_status_is_an_answer(converse: Start):
    asks = Asks()
    talk = converse(judged(), filters={"asks": asks})
    talk.client >> GET
    talk.dialled("judge.example", 9000)
    talk.origin.take(ASKED_AT_ALL)
    talk.origin >> answer(b"no", b"404 Not Found")
    talk.client.take(rb"HTTP/1.1 403 Denied: the judge says no.*")
    assert asks.answers[0].status == 404


@pytest.mark.parametrize("fail_open", [False, True])
def test_a_call_without_an_answer_is_a_filter_that_has_failed(converse: Start, fail_open: bool):
    asks = Asks()
    talk = converse(judged(fail_open=fail_open), filters={"asks": asks})
    talk.client >> GET
    talk.dialled("judge.example", 9000)
    talk.origin.take(ASKED_AT_ALL)
    talk.origin.leaves()
    if fail_open:
        goes_on(talk)
    else:
        talk.client.take(rb"HTTP/1.1 502 filter asks failed.*")
        assert talk.record()["reason"] == Reason.FILTER_FAILED.value
    assert [failed.reason for failed in asks.failures] == [Reason.UPSTREAM_CLOSED]
    assert talk.metrics.filter_calls.asked == {("asks", "agents/judge", "upstream_closed"): 1}


def test_a_backend_that_does_not_answer_in_time_has_failed(converse: Start):
    asks = Asks(timeout_s=0.01)
    talk = converse(judged(), filters={"asks": asks})
    talk.client >> GET
    talk.dialled("judge.example", 9000)
    talk.until(lambda: bool(asks.failures))
    talk.client.take(rb"HTTP/1.1 502 filter asks failed.*")
    assert "did not answer within 0.01 s" in str(asks.failures[0])


def test_a_client_that_leaves_ends_the_call(converse: Start):
    talk = converse(judged(), filters={"asks": Asks()})
    talk.client >> GET
    talk.dialled("judge.example", 9000)
    talk.client.leaves()
    talk.until(lambda: talk.origin.is_gone)
    assert talk.metrics.filter_calls.asked == {("asks", "agents/judge", "cancelled"): 1}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (answer(more=b"Content-Encoding: gzip\r\n"), "content coding"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n" + b"x" * 1_048_577, "longer than"),
    ],
)
def test_an_answer_that_cannot_be_read_is_none(converse: Start, said: bytes, why: str):
    asks = Asks()
    talk = converse(judged(), filters={"asks": asks})
    talk.client >> GET
    talk.dialled("judge.example", 9000)
    talk.origin.take(ASKED_AT_ALL)
    talk.origin >> said
    talk.client.take(rb"HTTP/1.1 502 .*")
    assert why in str(asks.failures[0])


def test_the_backend_has_its_own_credential_and_the_filter_does_not_see_it(converse: Start):
    key = m.secret("key", {"token": "s3cret-of-the-judge"})
    injector = {
        "name": "key", "type": "egressproxy.io/CredentialInjector:v1", "phase": "backend-request",
        "config": {"secretRef": {"name": "key"}, "allowPlaintext": True},
    }  # fmt: skip
    judge = m.backend("judge", "judge.example", 9000, extensions=[injector])
    asks = Asks()
    talk = converse([*judged(judge=judge), key], filters={"asks": asks})
    talk.client >> GET
    talk.dialled("judge.example", 9000)
    talk.origin.take(rb"POST /judge.*Authorization: Bearer s3cret-of-the-judge\r\n.*hello")
    talk.origin >> answer()
    talk.dialled("a.example", 80)
    talk.origin << FORWARDED


def test_what_policy_denies_is_not_called_either(converse: Start):
    asks = Asks()
    destinations = {"deny": [{"hostnames": ["judge.example"]}]}
    talk = converse(judged(destinations=destinations), filters={"asks": asks})
    talk.client >> GET
    talk.client.take(rb"HTTP/1.1 502 filter asks failed.*")
    assert [failed.reason for failed in asks.failures] == [Reason.DESTINATION_DENIED]
    assert not talk.origins


def test_a_backend_that_is_not_there_fails_every_call(converse: Start):
    asks = Asks()
    talk = converse(judged(ref={**JUDGE, "name": "nobody"}), filters={"asks": asks})
    talk.client >> GET
    talk.client.take(rb"HTTP/1.1 502 filter asks failed.*")
    assert "Backend agents/nobody does not exist" in str(asks.failures[0])


def test_an_extension_cannot_call_the_backend_that_needs_it():
    asking = scripted_filter("asks", phase="backend-request", calls=[JUDGE])
    judge = m.backend("judge", "judge.example", 9000, extensions=[asking])
    catalog = Catalog((scripted_type({}),))
    (listener,) = compiled_spec(reverse(m.prefix_rule("/", "judge"), objects=(judge,)), catalog).listeners
    spec = listener.http_routes[0].rules[0].backends[0].extensions[0]
    within = []
    while spec.calls:
        ((_, callee),) = spec.calls
        assert isinstance(callee, WeightedBackend)
        within.append(callee.error)
        spec = callee.extensions[0] if callee.extensions else ExtensionIR("end", "end", "end")
    assert within[0] == ""
    assert "would call a backend that needs the same extension" in within[-1]


def test_a_reload_keeps_the_filter_and_its_connection_and_no_builder(converse: Start):
    asks = Asks()
    talk = converse(judged(), filters={"asks": asks})
    talk.client >> GET
    talk.dialled("judge.example", 9000)
    judge = talk.origin
    judge.take(ASKED_AT_ALL)
    judge >> answer()
    goes_on(talk)
    calls = asks.calls
    talk.reload([*judged(), m.config_map("other", {"a": "b"})])
    gc.collect()
    assert not any(isinstance(each, SnapshotBuilder) for each in gc.get_objects())
    assert asks.calls is calls
    talk.client >> GET
    judge << ASKED


JUDGE_FILE = """
from egressproxy.filters import Filter

class Judge(Filter):
    def __init__(self, context):
        self.calls = context.calls

    async def request_headers(self, x):
        await self.calls["Backend judge"].request(b"POST", b"/judge", body=b"hello", timeout_s=5.0, x=x)
"""


def test_a_python_filter_calls_the_backends_that_it_lists(converse: Start, tmp_path: Path):
    (tmp_path / "judge.py").write_text(JUDGE_FILE)
    config = {"path": "judge.py", "backends": [JUDGE]}
    asking = {"name": "judge", "type": "egressproxy.io/Python:v1", "phase": "request-headers", "config": config}
    manifests = reverse(objects=(m.backend("judge", "judge.example", 9000),), extensions=[asking])
    spec = compile_valid(
        load_text(yaml.safe_dump_all(manifests), str(tmp_path / "all.yaml")), Catalog(), Defaults()
    ).spec
    talk = converse(spec)
    talk.client >> GET
    talk.dialled("judge.example", 9000)
    talk.origin.take(ASKED_AT_ALL)
    talk.origin >> answer()
    goes_on(talk)
