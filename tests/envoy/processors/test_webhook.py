"""What a webhook is sent, and what its answers do."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest

from egressproxy.envoy.processors.webhook import signature_fields
from egressproxy.envoy.processors.webhook_messages import InvalidAnswer, read_answer
from egressproxy.errors import Reason
from egressproxy.filters.calls import CallAnswer, CallFailed
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.chain import compile_chain
from egressproxy.filters.instances import FilterInstances
from egressproxy.filters.testing import FilterBuildError, FilterHarness, exchange, response
from egressproxy.ir.policy import BACKEND_LEVEL, Callee, ExtensionIR
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.secret import SecretBytes
from egressproxy.telemetry.event_aggregator import EventAggregator
from tests.gateway.conftest import Start
from tests.gateway.kit import reverse
from tests.support import manifests as m

TYPE = "egressproxy.io/Webhook:v1"
REF = {"group": "egressproxy.io", "kind": "Backend", "name": "hook"}
URL = "https://api.example.com/v1/chat?n=1"
ALLOW = {"action": "allow"}

Script = Callable[[dict[str, Any]], dict[str, Any] | tuple[int, bytes] | Exception]


class Hook:
    """The backend: implements FilterCall."""

    backend = "agents/hook"

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[dict[str, Any]] = []
        self.fields: list[dict[bytes, bytes]] = []
        self.sent: list[bytes] = []
        self.paths: list[bytes] = []

    async def request(
        self, method: bytes, path: bytes, fields: Any = (), body: bytes = b"", *, timeout_s: float, x: Exchange
    ) -> CallAnswer:
        assert method == b"POST"
        self.paths.append(path)
        self.fields.append(dict(fields))
        self.sent.append(body)
        self.asked.append(json.loads(body))
        said = self.script(self.asked[-1])
        if isinstance(said, Exception):
            raise said
        status, text = said if isinstance(said, tuple) else (200, json.dumps(said).encode())
        return CallAnswer(status, Fields(), text)


class Hooked(FilterHarness):
    """The filter with its webhook."""

    def __init__(
        self, script: Script, *, phase: str = "request-headers", fail_open: bool = False,
        key: bytes | None = None, **config: Any,
    ) -> None:  # fmt: skip
        config = {"backendRefs": [REF], **config}
        self.hook = Hook(script)
        secrets = (("hook/key", SecretBytes(key)),) if key is not None else ()
        spec = ExtensionIR(
            "test", TYPE, phase, fail_open=fail_open, timeout_s=5.0, config=json.dumps(config), secrets=secrets,
            level=BACKEND_LEVEL if phase == "backend-request" else 0,
            scope="Gateway test/gateway", source="EgressPolicy test/policy", calls=(("Backend hook", Callee()),),
        )  # fmt: skip
        self._name, self._notices = "test", EventAggregator()
        instances = FilterInstances(Catalog(), notices=self._notices, reach=lambda _name, _callee: self.hook)  # type: ignore[arg-type,return-value]
        self._chain = compile_chain([spec], instances.place)


def says(answer: Any) -> Script:
    return lambda _message: answer


def text(body: str) -> dict[str, str]:
    return {"text": body}


# --- what is sent ------------------------------------------------------------------------------------------------
def test_the_head_of_a_request_is_sent_with_who_asks_and_where():
    talk = Hooked(says(ALLOW), path="/check?v=1", headers=[{"name": "X-Token", "value": "a"}])
    x = exchange("POST", URL, {"A": "1"}, identity="agents/coder")
    x.identity = CallerIdentity("agents", "coder", name="alice")
    done = talk.run(x, request_body=b"in", response_body=b"out")
    assert (done.status, done.request_body, done.response_body) == (200, b"in", b"out")
    assert talk.hook.asked == [{
        "version": 1, "phase": "request-headers", "id": "test-1",
        "client": {"address": "192.0.2.1:40000", "namespace": "agents", "serviceAccount": "coder", "identity": "alice"},
        "gateway": "test/gateway", "listener": "test", "route": "-", "backend": "-",
        "request": {
            "method": "POST", "scheme": "https", "host": "api.example.com", "path": "/v1/chat?n=1",
            "headers": [{"name": "a", "value": "1"}],
        },
    }]  # fmt: skip
    assert talk.hook.paths == [b"/check?v=1"]
    assert talk.hook.fields == [{b"content-type": b"application/json", b"X-Token": b"a"}]


def test_bodies_are_sent_whole_as_text_or_in_base64():
    talk = Hooked(says(ALLOW), send=["request-body", "response-body"])
    talk.run(exchange("POST", URL), request_body=[b"h\xc3", b"\xa9"], response_body=b"\xff\x00")
    request, reply = talk.hook.asked
    assert (request["phase"], request["body"], "response" in request) == ("request-body", {"text": "hé"}, False)
    assert (reply["phase"], reply["body"]) == ("response-body", {"base64": base64.b64encode(b"\xff\x00").decode()})
    assert reply["response"] == {"status": 200, "headers": []}


def test_a_message_without_a_body_is_sent_with_its_head():
    talk = Hooked(says(ALLOW), send=["request-body", "response-body"])
    talk.run(exchange("GET", URL), response=response(204))
    assert [(each["phase"], "body" in each) for each in talk.hook.asked] == [
        ("request-body", False), ("response-body", False),
    ]  # fmt: skip


def test_fields_are_shown_as_the_rules_say():
    talk = Hooked(says(ALLOW), forwardRules={"disallowedHeaders": ["Authorization", "x-*"]})
    talk.run(exchange("GET", URL, {"Authorization": "Bearer key", "X-A": "1", "B": "2"}))
    assert talk.hook.asked[0]["request"]["headers"] == [{"name": "b", "value": "2"}]
    assert b"Bearer" not in talk.hook.sent[0]


def test_calls_are_signed_as_standard_webhooks_has_it():
    # The example of the specification of Standard Webhooks.
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    fields = dict(signature_fields(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'))
    assert fields[b"webhook-signature"] == b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    talk = Hooked(
        says(ALLOW), key=b"whsec_" + base64.b64encode(b"secret") + b"\n", secretRef={"name": "hook", "key": "key"}
    )
    talk.run(exchange("GET", URL))
    sent = talk.hook.fields[0]
    signed = b"%b.%b.%b" % (sent[b"webhook-id"], sent[b"webhook-timestamp"], talk.hook.sent[0])
    made = base64.b64encode(hmac.new(b"secret", signed, hashlib.sha256).digest())
    assert sent[b"webhook-signature"] == b"v1," + made


def test_without_its_secret_nothing_is_sent_and_nothing_passes():
    talk = Hooked(says(ALLOW), secretRef={"name": "hook", "key": "key"})
    done = talk.run(exchange("GET", URL))
    assert (done.status, talk.hook.asked) == (502, [])
    assert "SecretMissing" in done.failures[0]


# --- what it answers ---------------------------------------------------------------------------------------------
def test_an_answer_without_content_allows():
    assert Hooked(says((204, b""))).run(exchange("GET", URL)).status == 200


def test_headers_and_bodies_are_changed():
    headers = {"set": [{"name": "X-A", "value": "1"}, {"name": "host", "value": "evil"}], "remove": ["B"]}
    script = says({"action": "allow", "headers": headers, "body": text("new")})
    talk = Hooked(script, send=["request-body", "response-body"])
    done = talk.run(
        exchange("POST", URL, {"B": "1"}), request_body=b"old", response=response(200, {"B": "2"}), response_body=b"old"
    )
    assert (done.request_body, done.response_body) == (b"new", b"new")
    assert list(done.response.fields) == [(b"x-a", b"1")]
    # A body that is sent has no content coding: the backend is asked for it plain.
    assert list(done.request.fields) == [(b"x-a", b"1"), (b"accept-encoding", b"identity")]
    assert done.exchange.upstream_host == b"api.example.com"


@pytest.mark.parametrize("phase", ["request-headers", "request-body", "response-headers", "response-body"])
@pytest.mark.parametrize("fail_open", [False, True])
def test_a_denial_is_a_refusal_in_every_phase_whatever_failures_do(phase: str, fail_open: bool):
    answer = {"action": "deny", "status": 429, "message": "too much of it", "retryAfter": 7}
    talk = Hooked(says(answer), send=[phase], fail_open=fail_open)
    done = talk.run(exchange("POST", URL), request_body=b"in", response_body=b"out")
    assert done.error is not None
    assert (done.status, done.error.message, done.error.retry_after_s) == (429, "too much of it", 7)
    assert done.error.reason is Reason.FILTER_REJECTED
    assert done.error.rule == "EgressPolicy test/policy"


BAD: dict[str, Any] = {
    "another status": (500, b"{}"),
    "a redirect": (302, b""),
    "no JSON": (200, b"allow"),
    "two keys": (200, b'{"action": "allow", "action": "deny"}'),
    "an array": (200, b"[]"),
    "no action": {},
    "another action": {"action": "permit"},
    "an unknown field": {"action": "allow", "heders": {}},
    "an unknown field inside": {"action": "allow", "headers": {"sett": []}},
    "a status of success": {"action": "deny", "status": 200},
    "a status for proxies": {"action": "deny", "status": 407},
    "a status that is true": {"action": "deny", "status": True},
    "a message of lines": {"action": "deny", "message": "a\nb"},
    "a denial with a body": {"action": "deny", "body": text("x")},
    "a status with allow": {"action": "allow", "status": 403},
    "a value that cannot be": {"action": "allow", "headers": {"set": [{"name": "a", "value": "1\r\nb: 2"}]}},
    "a name that cannot be": {"action": "allow", "headers": {"remove": ["a b"]}},
    "a body where none was": {"action": "allow", "body": text("x")},
    "no answer": CallFailed(Reason.RESPONSE_TIMEOUT, "backend agents/hook did not answer within 5 s"),
}


@pytest.mark.parametrize("said", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("fail_open", [False, True])
def test_what_is_no_answer_is_a_failure(said: Any, fail_open: bool):
    talk = Hooked(says(said), fail_open=fail_open)
    done = talk.run(exchange("GET", URL))
    assert len(done.failures) == 1
    assert done.status == (200 if fail_open else 502)


@pytest.mark.parametrize("body", [{"text": "a", "base64": "YQ=="}, {}, {"base64": "%"}, {"text": 1}, "a"])
def test_a_body_is_text_or_base64(body: Any):
    with pytest.raises(InvalidAnswer):
        read_answer(200, json.dumps({"action": "allow", "body": body}).encode())


def test_a_body_above_the_bound_is_refused():
    talk = Hooked(says(ALLOW), send=["request-body"], maxBodyBytes=3)
    assert talk.run(exchange("POST", URL), request_body=b"abcd").status == 413
    assert talk.hook.asked == []


def test_a_tunnel_shows_its_head():
    talk = Hooked(says({"action": "deny"}), send=["request-body"])
    done = talk.run(exchange("CONNECT", "api.example.com:443"))
    assert done.status == 403
    assert talk.hook.asked[0]["request"]["method"] == "CONNECT"


@pytest.mark.parametrize(("config", "said"), [
    ({"path": "check"}, "is not a path"),
    ({"send": []}, "config.send"),
    ({"send": ["connect"]}, "config.send"),
    ({"headers": [{"name": "Webhook-Id", "value": "1"}]}, "written by the gateway itself"),
    ({"timeout": "5"}, "is not a duration"),
    ({"url": "http://a"}, "unknown field"),
])  # fmt: skip
def test_a_wrong_config_is_refused(config: dict[str, Any], said: str):
    with pytest.raises(FilterBuildError, match=said):
        Hooked(says(ALLOW), **config)


def test_on_a_backend_the_body_of_an_attempt_is_sent():
    talk = Hooked(says({"action": "allow", "body": text("new")}), phase="backend-request", send=["request-body"])
    done = talk.run(exchange("POST", URL), request_body=b"old")
    assert done.request_body == b"new"
    assert [each["phase"] for each in talk.hook.asked] == ["request-body"]


def test_a_secret_that_is_no_key_is_refused():
    with pytest.raises(FilterBuildError, match="not base64"):
        Hooked(says(ALLOW), key=b"whsec_%%%", secretRef={"name": "hook", "key": "key"})


def test_a_webhook_is_asked_over_the_pools_and_its_denial_reaches_the_client(converse: Start):
    extension = {
        "name": "hook", "type": TYPE, "phase": "request-headers",
        "config": {"backendRefs": [REF], "path": "/check", "send": ["request-body"]},
    }  # fmt: skip
    talk = converse(reverse(objects=(m.backend("hook", "hook.example", 9000),), extensions=[extension]))
    post = b"POST /x HTTP/1.1\r\nHost: app.example\r\nContent-Length: 2\r\n\r\nhi"
    talk.client >> post
    talk.dialled("hook.example", 9000)
    hook = talk.origin
    hook.take(rb"POST /check HTTP/1.1\r\nHost: hook.example:9000\r\n.*\"phase\":\"request-body\".*\"text\":\"hi\".*")
    allowed = json.dumps({"action": "allow", "headers": {"set": [{"name": "X-A", "value": "1"}]}, "body": text("ho!")})
    hook >> b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(allowed), allowed.encode())
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST /x HTTP/1.1\r\n.*x-a: 1\r\n.*\r\n\r\nho!")
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    talk.client.take(rb"HTTP/1.1 200 OK\r\n.*\r\n\r\nok")
    talk.client >> post  # on the connections of before
    hook.take(rb"POST /check .*\"text\":\"hi\".*")
    denied = b'{"action": "deny", "status": 451, "message": "not this"}'
    hook >> b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(denied), denied)
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"], error["message"]) == (451, "filter_rejected", "not this")
    assert talk.metrics.filter_calls.asked == {("hook", "agents/hook", "ok"): 2}


@pytest.mark.parametrize("is_on_backend", [False, True])
def test_a_type_of_ones_own_with_a_webhook_is_shown_the_body_in_request_body(converse: Start, is_on_backend: bool):
    processor = {"protocol": "Webhook", "backendRefs": [{**REF, "namespace": "agents"}], "settings": {"path": "/check"}}
    kind = m.manifest(
        "egressproxy.io/v1alpha1", "FilterType", "screen", "",
        spec={"type": "acme.example.com/Screen:v1", "phases": ["request-body"], "processor": processor},
    )  # fmt: skip
    del kind["metadata"]["namespace"]
    used = [{"name": "screen", "type": "acme.example.com/Screen:v1", "phase": "request-body"}]
    hook = m.backend("hook", "hook.example", 9000)
    if is_on_backend:
        screened = m.backend("b", "a.example", 80, extensions=used)
        talk = converse(reverse(m.prefix_rule("/", "b"), objects=(hook, kind, screened)))
    else:
        talk = converse(reverse(objects=(hook, kind), extensions=used))
    talk.client >> b"POST /x HTTP/1.1\r\nHost: app.example\r\nContent-Length: 2\r\n\r\nhi"
    if is_on_backend:
        talk.dialled("a.example", 80)  # of each attempt: the connection is there before its filters run
    talk.dialled("hook.example", 9000)
    asked = rb"POST /check .*x-egressproxy-filter-type: acme.*\"phase\":\"request-body\".*\"text\":\"hi\".*"
    talk.origin.take(asked)
    denied = b'{"action": "deny", "status": 451, "message": "not this"}'
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(denied), denied)
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"], error["message"]) == (451, "filter_rejected", "not this")
