"""Credentials on their way: to their own backend, and to nobody else, whatever leads there."""

from __future__ import annotations

import hmac
from typing import Any

import pytest

from egressproxy.filters.content_coding import ContentDecoder, new_encoder
from egressproxy.filters.credentials.aws_chunks import ChunkSigner
from egressproxy.filters.credentials.aws_signature import AwsKeys, Scope, SigV4
from egressproxy.model.secret import SecretBytes
from tests.filters.credentials.kit import RSA_KEY, pem
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_hedging import asked, dialled
from tests.gateway.kit import OK, OK_PASSED, forward, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation, Peer
from tests.support.manifests import Manifest

MINE, OTHER = b"sk-egress-mine-0123456789", b"sk-egress-other-987654321"
KEYS = {"a": b"REAL-KEY-OF-A", "b": b"REAL-KEY-OF-B"}
SECRETS = tuple(m.secret(f"key-{name}", {"token": key.decode()}) for name, key in KEYS.items())


def injector(name: str, **config: Any) -> Manifest:
    settings = {"secretRef": {"name": f"key-{name}"}, "allowPlaintext": True, **config}
    return {"name": f"inject-{name}", "type": "egressproxy.io/CredentialInjector:v1", "config": settings}


def keyed(name: str, port: int = 80, **config: Any) -> Manifest:
    return m.backend(name, f"{name}.example", port, extensions=[injector(name, **config)])


def get(key: bytes = MINE, path: bytes = b"/", *, more: bytes = b"") -> bytes:
    return b"GET %b HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n%b\r\n" % (path, key, more)


def served(talk: Conversation, host: str, key: bytes, *, is_new: bool = True) -> None:
    if is_new:
        talk.dialled(host, 80)
    head = talk.origin.take(rb"\A[A-Z]+ .*?\r\n\r\n")[0]
    assert head.count(b"Authorization: Bearer " + key + b"\r\n") == 1
    for other in {*KEYS.values(), MINE, OTHER} - {key}:
        assert other not in head
    talk.origin >> OK
    talk.client << OK_PASSED


def denied(talk: Conversation, reason: str) -> None:
    status, _, _, said = talk.client.answer()
    assert (status, talk.record()["reason"]) == (403, reason)
    for secret in (*KEYS.values(), MINE, OTHER):
        assert secret.decode() not in str(said)
    for key in KEYS.values():
        assert key.decode() not in str(talk.log.lines)
    for origin in talk.origins:
        unseen(origin)


def unseen(origin: Peer) -> None:
    """Neither a key nor a placeholder has come here."""
    for secret in (*KEYS.values(), MINE, OTHER):
        assert secret not in origin.received


PLACEHOLDERS = [
    m.gateway(m.http_listener(8080)),
    *SECRETS,
    keyed("a", placeholder=MINE.decode()),
    keyed("b", placeholder=OTHER.decode(), require="placeholder"),
    m.backend("c", "c.example", 80),
]


def with_rules(*rules: Manifest, objects: tuple[Manifest, ...] = ()) -> list[Manifest]:
    return [*PLACEHOLDERS, *objects, m.http_route("r", *rules)]


def mirror_to(name: str) -> Manifest:
    ref = {"group": m.OURS, "kind": "Backend", "name": name}
    return {"type": "RequestMirror", "requestMirror": {"backendRef": ref}}


def test_a_placeholder_becomes_the_key_of_its_own_backend(converse: Start):
    talk = converse(with_rules(m.prefix_rule("/a", "a"), m.prefix_rule("/b", "b")))
    talk.client >> get(MINE, b"/a")
    served(talk, "a.example", KEYS["a"])
    talk.client >> get(OTHER, b"/b")
    served(talk, "b.example", KEYS["b"])


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (get(OTHER, b"/a"), "placeholder_misplaced"),
        (get(MINE, b"/b"), "placeholder_misplaced"),
        (get(MINE, b"/c"), "placeholder_misplaced"),
        (get(b"x", b"/c/" + MINE), "placeholder_misplaced"),
        (get(b"x", b"/c?q=" + MINE), "placeholder_misplaced"),
        (get(MINE, b"/a", more=b"X-Debug: " + MINE + b"\r\n"), "placeholder_misplaced"),
        (get(b"x", b"/c", more=b"Via: 1.1 " + MINE + b"\r\n"), "placeholder_misplaced"),
        (get(b"x", b"/c", more=b"Cookie: k=%73" + MINE[1:] + b"\r\n"), "placeholder_misplaced"),
        (get(b"foreign", b"/b"), "placeholder_required"),
    ],
)
def test_elsewhere_it_ends_the_request(converse: Start, request_: bytes, reason: str):
    talk = converse(with_rules(*(m.prefix_rule(f"/{name}", name) for name in "abc")))
    talk.client >> request_
    talk.dialled(f"{request_[5:6].decode()}.example", 80)
    denied(talk, reason)
    (notice,) = talk.metrics.notices.take()
    assert notice.reason == "".join(part.capitalize() for part in reason.split("_"))
    assert MINE.decode() not in notice.message


def test_a_mirror_gets_neither_key_nor_placeholder(converse: Start):
    rule = m.prefix_rule("/", "a", filters=[mirror_to("c")])
    talk = converse(with_rules(rule))
    talk.client >> get()
    own = talk.dialled("a.example", 80)
    copy = talk.dialled("c.example", 80)
    assert KEYS["a"] in own.take(rb"GET .*?\r\n\r\n")[0]
    own >> OK
    talk.client << OK_PASSED
    copy.hears_nothing()
    unseen(copy)


def test_a_failover_to_another_backend_takes_neither_along(converse: Start):
    talk = converse(with_rules(m.prefix_rule("/", "any"), objects=(m.failover("any", "a", "b"),)))
    talk.client >> get()
    talk.dialled("a.example", 80)
    first = talk.origin
    assert KEYS["a"] in first.take(rb"GET .*?\r\n\r\n")[0]
    first >> b"HTTP/1.1 503 Down\r\nContent-Length: 2\r\n\r\nno"
    talk.dialled("b.example", 80)
    status, _, _, _ = talk.client.answer()
    assert status == 403
    unseen(talk.origin)


def test_two_backends_of_one_placeholder_have_each_their_own_key(converse: Start):
    objects = [
        m.gateway(m.http_listener(8080)), *SECRETS, m.failover("any", "a", "b"),
        *(keyed(name, placeholder=MINE.decode(), require="placeholder") for name in "ab"),
        m.http_route("r", m.prefix_rule("/", "any")),
    ]  # fmt: skip
    talk = converse(objects)
    talk.client >> get()
    talk.dialled("a.example", 80)
    assert KEYS["a"] in talk.origin.take(rb"GET .*?\r\n\r\n")[0]
    talk.origin >> b"HTTP/1.1 503 Down\r\nContent-Length: 2\r\n\r\nno"
    served(talk, "b.example", KEYS["b"])


def test_a_client_that_follows_a_redirect_has_nothing_to_show_there(converse: Start):
    """The gateway follows none itself; the client's next request is one of its own, to a host that a policy allows."""
    route = m.http_route("r", m.prefix_rule("/", "a"), hostnames=["a.example"])
    allowed = ("a.example", "evil.example")
    talk = converse(forward(*SECRETS, keyed("a", placeholder=MINE.decode()), route, allow=allowed))
    talk.client >> b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer " + MINE + b"\r\n\r\n"
    talk.dialled("a.example", 80)
    assert KEYS["a"] in talk.origin.take(rb"GET .*?\r\n\r\n")[0]
    talk.origin >> b"HTTP/1.1 307 Go\r\nLocation: http://evil.example/\r\nContent-Length: 0\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 307 .*?\r\n\r\n")
    (
        talk.client
        >> b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer " + MINE + b"\r\n\r\n"
    )
    talk.dialled("evil.example", 80)
    denied(talk, "placeholder_misplaced")


def test_a_body_with_a_placeholder_ends_the_request(converse: Start):
    objects = [
        m.gateway(m.http_listener(8080)), *SECRETS, m.backend("c", "c.example", 80),
        keyed("a", placeholder=MINE.decode(), placeholderBodyBytes=65536),
        m.http_route("r", m.prefix_rule("/a", "a"), m.prefix_rule("/c", "c")),
    ]  # fmt: skip
    talk = converse(objects)
    talk.expects_failures = True
    body = b'{"key": "' + MINE + b'"}'
    talk.client >> b"POST /c HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    talk.dialled("c.example", 80)
    talk.client >> body
    denied(talk, "placeholder_misplaced")


@pytest.mark.parametrize("coding", [b"gzip", b"br", b"zstd"])
def test_a_coded_body_with_a_placeholder_ends_the_request(converse: Start, coding: bytes):
    objects = [
        m.gateway(m.http_listener(8080)), *SECRETS, m.backend("c", "c.example", 80),
        keyed("a", placeholder=MINE.decode(), placeholderBodyBytes=65536),
        m.http_route("r", m.prefix_rule("/a", "a"), m.prefix_rule("/c", "c")),
    ]  # fmt: skip
    talk = converse(objects)
    talk.expects_failures = True
    body = new_encoder(coding).encode(b'{"key": "' + MINE + b'"}', True)
    head = b"POST /c HTTP/1.1\r\nHost: x\r\nContent-Encoding: %b\r\nContent-Length: %d\r\n\r\n"
    talk.client >> head % (coding, len(body))
    talk.dialled("c.example", 80)
    talk.client >> body
    denied(talk, "placeholder_misplaced")


def test_a_body_in_a_coding_that_is_not_known_passes_the_watch(converse: Start):
    objects = [
        m.gateway(m.http_listener(8080)), *SECRETS, m.backend("c", "c.example", 80),
        keyed("a", placeholder=MINE.decode(), placeholderBodyBytes=65536),
        m.http_route("r", m.prefix_rule("/a", "a"), m.prefix_rule("/c", "c")),
    ]  # fmt: skip
    talk = converse(objects)
    talk.client >> b"POST /c HTTP/1.1\r\nHost: x\r\nContent-Encoding: compress\r\nContent-Length: 2\r\n\r\nhi"
    talk.dialled("c.example", 80)
    talk.origin.take(rb"POST .*\r\n\r\nhi")
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_filter_of_a_route_that_is_bound_sends_its_key_to_what_it_is_bound_to_alone(converse: Start):
    bound = injector("a", bind={"ports": [80]})
    policy = {
        "apiVersion": "egressproxy.io/v1alpha1", "kind": "EgressPolicy",
        "metadata": {"name": "p", "namespace": "agents"},
        "spec": {
            "targetRefs": [{"group": m.GATEWAY_API, "kind": "HTTPRoute", "name": "route"}], "extensions": [bound],
        },
    }  # fmt: skip
    other = m.backend("b", "b.example", 81)
    rules = (m.prefix_rule("/a", "a"), m.prefix_rule("/b", "b"), m.prefix_rule("/any", "any"))
    talk = converse(reverse(*rules, objects=(*SECRETS, other, policy, m.failover("any", "a", "b"))))
    talk.client >> get(b"theirs", b"/a")
    served(talk, "a.example", KEYS["a"])
    talk.client >> get(b"theirs", b"/b")
    talk.dialled("b.example", 81)
    denied(talk, "credential_not_bound")


def test_without_tls_nothing_is_sent_through_a_parent_either(converse: Start):
    secure = m.backend(
        "a", "a.example", 80, parent={"name": "parent"}, extensions=[injector("a", allowPlaintext=False)]
    )
    route = m.http_route("r", m.prefix_rule("/", "a"), hostnames=["a.example"])
    talk = converse(forward(*SECRETS, m.backend("parent", "parent.example", 3128), secure, route))
    talk.client >> b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"
    talk.dialled("parent.example", 3128)
    denied(talk, "plaintext_credential")


def test_a_hedged_attempt_at_another_backend_carries_neither(converse: Start):
    objects = [
        m.gateway(m.http_listener(8080)), *SECRETS, m.policy(traffic={"hedging": {"hedgingDelay": "10ms"}}),
        keyed("a", placeholder=MINE.decode()), m.backend("c", "c.example", 80), m.failover("any", "a", "c"),
        m.http_route("r", m.prefix_rule("/", "any")),
    ]  # fmt: skip
    talk = converse(objects)
    talk.client >> get()
    _, own = asked(talk)
    assert own.received == b""
    name, other = dialled(talk)
    assert name == "c.example"
    other.hears_nothing()
    unseen(other)
    own >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize("mode", ["Report", "Open"])
def test_no_mode_of_a_policy_lets_a_placeholder_pass(converse: Start, mode: str):
    rules = (m.prefix_rule("/a", "a"), m.prefix_rule("/c", "c"))
    talk = converse(with_rules(*rules, objects=(m.policy(mode=mode),)))
    talk.client >> get(MINE, b"/c")
    talk.dialled("c.example", 80)
    denied(talk, "placeholder_misplaced")


def test_an_upgrade_has_its_key_in_its_place_and_a_placeholder_nowhere_else(converse: Start):
    talk = converse(with_rules(m.prefix_rule("/a", "a"), m.prefix_rule("/c", "c")))
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    talk.client >> get(MINE, b"/a", more=upgrade)
    talk.dialled("a.example", 80)
    assert KEYS["a"] in talk.origin.take(rb"GET .*?\r\n\r\n")[0]
    talk.origin >> b"HTTP/1.1 426 No\r\nContent-Length: 2\r\n\r\nno"
    talk.client.take(rb"HTTP/1.1 426 .*?\r\n\r\nno")
    other = talk.connect()
    other >> get(MINE, b"/c", more=upgrade)
    talk.dialled("c.example", 80)
    other.take(rb"HTTP/1.1 403 ")
    unseen(talk.origin)


SEED = b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
THEIRS = b"5;chunk-signature=%s\r\nhello\r\n0;chunk-signature=%s\r\n\r\n" % ((b"0" * 64,) * 2)


@pytest.mark.parametrize("retries", [False, True], ids=["flows", "whole"])
def test_chunks_for_s3_are_signed_anew_on_their_way(converse: Start, retries: bool):
    """A body that flows is signed behind its head, one that may go again is whole before it."""
    secret = m.secret("aws", {"id": "AKIATEST", "secret": "REAL-KEY-OF-AWS"})
    refs = {"accessKeyIdRef": {"name": "aws", "key": "id"}, "secretAccessKeyRef": {"name": "aws", "key": "secret"}}
    config = {"aws": {"service": "s3", "region": "x", "accessKey": refs}, "allowPlaintext": True}
    extension = {"name": "aws", "type": "egressproxy.io/CredentialInjector:v1", "config": config}
    more = {"retry": {"attempts": 1, "codes": [503]}} if retries else {}
    objects = [
        m.gateway(m.http_listener(8080)), secret, m.backend("a", "a.example", 80, extensions=[extension]),
        m.http_route("r", m.prefix_rule("/", "a", **more)),
    ]  # fmt: skip
    talk = converse(objects)
    head = b"PUT /bucket/key HTTP/1.1\r\nHost: x\r\nX-Amz-Content-SHA256: %b\r\nContent-Length: %d\r\n\r\n"
    talk.client >> head % (SEED, len(THEIRS))
    talk.client >> THEIRS[:50]
    if not retries:
        talk.dialled("a.example", 80)
    talk.client >> THEIRS[50:]
    if retries:
        talk.dialled("a.example", 80)
    attempt(talk)
    talk.origin >> OK
    talk.client << OK_PASSED


def attempt(talk: Conversation) -> None:
    """An attempt at S3 whose body follows from the signature of its head."""
    signer = SigV4(AwsKeys("AKIATEST", SecretBytes(b"REAL-KEY-OF-AWS")), Scope("s3", "x", is_s3=True))
    found = talk.origin.take(
        rb"PUT /bucket/key HTTP/1.1\r\n.*?x-amz-date: (\S+)\r\n.*?Signature=([0-9a-f]{64})\r\n.*?\r\n\r\n(.{%d})"
        % len(THEIRS)
    )
    expected = ChunkSigner(signer, found[1], found[2], has_trailers=False).feed(THEIRS, True)
    assert found[3] == expected


@pytest.mark.parametrize("shown", ["Asterisks", "Placeholder"])
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
@pytest.mark.parametrize("size", [7, 1000])
def test_a_key_in_a_coded_answer_is_found_and_the_answer_stays_readable(
    converse: Start, shown: str, coding: str, size: int
):
    text = b'{"headers": {"authorization": "Bearer ' + KEYS["a"] + b'"}, "rest": "' + b"x" * 500 + b'"}'
    encoder = new_encoder(coding.encode())
    body = encoder.encode(text[:45], False) + encoder.encode(text[45:], True)  # the key lies across two blocks
    config = {"placeholder": MINE.decode(), "scrubResponses": True, "scrubAs": shown}
    objects = [
        m.gateway(m.http_listener(8080)), *SECRETS, keyed("a", **config), m.http_route("r", m.prefix_rule("/", "a")),
    ]  # fmt: skip
    talk = converse(objects)
    talk.client >> get()
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET .*?\r\n\r\n")
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: %b\r\nContent-Length: %d\r\n\r\n"
    talk.origin >> head % (coding.encode(), len(body))
    for at in range(0, len(body), size):
        talk.origin >> body[at : at + size]
    answer = talk.client.take(rb"HTTP/1.1 200 OK\r\n(.*?)\r\n\r\n(.*\r\n0\r\n\r\n)")
    assert b"content-length" not in answer[1].lower()
    decoded = ContentDecoder(coding.encode()).decode(dechunked(answer[2]), True)
    instead = MINE if shown == "Placeholder" else b"*" * len(KEYS["a"])
    assert decoded == text.replace(KEYS["a"], instead)


def dechunked(data: bytes) -> bytes:
    parts = []
    while data:
        size, _, data = data.partition(b"\r\n")
        parts.append(data[: int(size, 16)])
        data = data[int(size, 16) + 2 :]
    return b"".join(parts)


HOOK = m.backend("hook", "hook.example", 9000)


def webhook(phase: str, sent: str, priority: int = 100) -> Manifest:
    ref = {"group": m.OURS, "kind": "Backend", "name": "hook"}
    config = {"backendRefs": [ref], "send": [sent]}
    kind = "egressproxy.io/Webhook:v1"
    return {"name": "hook", "type": kind, "phase": phase, "priority": priority, "config": config}


def shown(talk: Conversation) -> bytes:
    """What the webhook of another object is shown; it agrees."""
    asked = talk.dialled("hook.example", 9000).take(rb"POST .*\}")[0]
    talk.origin >> b'HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{"action":"allow"}'
    return asked


@pytest.mark.parametrize("config", [{}, {"query": "key"}], ids=["header", "query"])
def test_a_filter_of_responses_is_not_shown_what_was_injected(converse: Start, config: Manifest):
    extension = webhook("request-headers", "response-headers")
    objects = [m.gateway(m.http_listener(8080)), *SECRETS, HOOK, keyed("a", **config), m.policy(extensions=[extension])]
    talk = converse([*objects, m.http_route("r", m.prefix_rule("/", "a"))])
    talk.client >> get(b"of-the-client")
    origin = talk.dialled("a.example", 80)
    assert KEYS["a"] in origin.take(rb"GET .*?\r\n\r\n")[0]
    origin >> OK
    asked = shown(talk)
    assert KEYS["a"] not in asked
    assert b"of-the-client" in asked  # the request as it was before
    talk.client << OK_PASSED


def test_a_filter_of_another_object_runs_before_a_credential_is_injected_whatever_its_priority(converse: Start):
    extension = webhook("backend-request", "request-headers", priority=1_000_000)
    objects = [m.gateway(m.http_listener(8080)), *SECRETS, HOOK, keyed("a"), m.policy(extensions=[extension])]
    talk = converse([*objects, m.http_route("r", m.prefix_rule("/", "a"))])
    talk.client >> get(b"of-the-client")
    origin = talk.dialled("a.example", 80)
    assert KEYS["a"] not in shown(talk)
    assert KEYS["a"] in origin.take(rb"GET .*?\r\n\r\n")[0]
    origin >> OK
    talk.client << OK_PASSED


def test_a_filter_of_another_object_sees_responses_when_the_credential_is_masked(converse: Start):
    extension = webhook("backend-request", "response-body", priority=-1_000_000)
    objects = [m.gateway(m.http_listener(8080)), *SECRETS, HOOK, keyed("a", scrubResponses=True)]
    talk = converse([*objects, m.policy(extensions=[extension]), m.http_route("r", m.prefix_rule("/", "a"))])
    talk.client >> get(b"of-the-client")
    origin = talk.dialled("a.example", 80)
    origin.take(rb"GET .*?\r\n\r\n")
    origin >> b"HTTP/1.1 200 OK\r\nX-Echo: %b\r\nContent-Length: 13\r\n\r\n%b" % (KEYS["a"], KEYS["a"])
    assert KEYS["a"] not in shown(talk)
    talk.client.take(rb"HTTP/1.1 200 OK\r\n.*\r\n\r\n\*{13}")


def test_a_filter_of_the_same_object_runs_where_its_priority_says(converse: Start):
    own = m.backend(
        "a", "a.example", 80, extensions=[injector("a"), webhook("backend-request", "request-headers", 200)]
    )
    objects = [m.gateway(m.http_listener(8080)), *SECRETS, HOOK, own]
    talk = converse([*objects, m.http_route("r", m.prefix_rule("/", "a"))])
    talk.client >> get(b"of-the-client")
    origin = talk.dialled("a.example", 80)
    assert KEYS["a"] in shown(talk)
    origin.take(rb"GET .*?\r\n\r\n")
    origin >> OK
    talk.client << OK_PASSED


def test_a_signature_is_over_what_each_attempt_sends_and_for_its_backend_alone(converse_on: Start):
    """Behind a filter of the same Backend with a later priority, with the whole body, anew for a retry; a fail-over to
    a backend without one takes none along.
    """
    signed_fields = [{"name": "X-Nonce", "value": "{nonce}"}, {"name": "X-Signature", "value": "v1={signature}"}]
    message = "{method} {host}{target}\n{header.x-tenant}\n{nonce}\n{body}"
    signature = {"secretRef": {"name": "key-a"}, "message": message, "fields": signed_fields}
    extensions = [
        {**injector("a", hmac=signature), "priority": 1},
        {
            "name": "late", "type": "egressproxy.io/HeaderPolicy:v1", "phase": "backend-request", "priority": 900,
            "config": {"request": {"set": [{"name": "X-Tenant", "value": "of-the-gateway"}]}},
        },
    ]  # fmt: skip
    del extensions[0]["config"]["secretRef"]
    rule = m.prefix_rule("/", "any", rewrite="/v2", retry={"attempts": 2, "codes": [503]})
    objects = [
        m.gateway(m.http_listener(8080)), *SECRETS, m.backend("a", "a.example", 80, extensions=extensions),
        m.backend("c", "c.example", 80), m.failover("any", "a", "c"), m.http_route("r", rule),
    ]  # fmt: skip
    talk = converse_on(objects)
    talk.client >> (
        b"POST /x?y HTTP/1.1\r\nHost: x\r\nX-Tenant: forged\r\nX_Signature: v1=forged\r\nX-Signature: v1=forged\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n"
    )
    talk.client >> b"0\r\n\r\n"
    talk.dialled("a.example", 80)
    found = talk.origin.take(
        rb"POST /v2/x\?y HTTP/1.1\r\n.*?X-Nonce: (\w+)\r\nX-Signature: v1=(\w+)\r\n.*?\r\n\r\n(.{4})"
    )
    head, nonce, value, body = found[0], *found.groups()
    assert b"forged" not in head
    text = b"POST a.example/v2/x?y\nof-the-gateway\n" + nonce + b"\n" + body
    assert value == hmac.digest(KEYS["a"], text, "sha256").hex().encode()
    talk.origin >> b"HTTP/1.1 503 Down\r\nContent-Length: 2\r\n\r\nno"
    talk.dialled("c.example", 80)
    other = talk.origin.take(rb"POST /v2/x\?y HTTP/1.1\r\n.*?\r\n\r\nbody")[0]
    assert b"x-nonce" not in other.lower()
    assert value not in other
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_key_of_another_filter_is_under_the_signature(converse: Start):
    """As exchanges have it: a key, and a signature over it; whatever the priorities, and the client's own key goes."""
    signature = {
        "secretRef": {"name": "key-b"}, "message": "{header.x-api-key}{target}",
        "fields": [{"name": "X-Signature", "value": "{signature}"}],
    }  # fmt: skip
    signer = {**injector("b", hmac=signature, keepClientCredentials=True), "priority": 1}
    del signer["config"]["secretRef"]
    key = {**injector("a", header="X-Api-Key"), "priority": 2}
    objects = [
        m.gateway(m.http_listener(8080)), *SECRETS, m.backend("a", "a.example", 80, extensions=[signer, key]),
        m.http_route("r", m.prefix_rule("/", "a")),
    ]  # fmt: skip
    talk = converse(objects)
    talk.client >> get(b"theirs", b"/x?api_key=theirs", more=b"X-Api-Key: theirs\r\n")
    talk.dialled("a.example", 80)
    found = talk.origin.take(rb"GET /x HTTP/1.1\r\n.*?X-Api-Key: ([^\r]+)\r\nX-Signature: (\w+)\r\n.*?\r\n\r\n")
    assert b"theirs" not in found[0]
    assert found[1] == KEYS["a"]
    assert found[2] == hmac.digest(KEYS["b"], KEYS["a"] + b"/x", "sha256").hex().encode()
    talk.origin >> OK
    talk.client << OK_PASSED


IDP = {"group": m.OURS, "kind": "Backend", "name": "idp"}
TOKEN = {"tokenRef": {"name": "key-a"}, "path": "app", "key": "token"}
APP = {"privateKeyRef": {"name": "pem"}, "clientId": "Iv1", "installationId": 1}


@pytest.mark.parametrize(
    "config", [{"vault": {"backendRef": IDP, **TOKEN}}, {"githubApp": {"backendRef": IDP, **APP}}],
    ids=["vault", "githubApp"],
)  # fmt: skip
def test_what_gives_a_credential_is_asked_where_the_policy_allows_it(converse: Start, config: dict[str, Any]):
    if "vault" in config:
        pytest.importorskip("hvac")
    (kind,) = config
    config[kind]["allowPlaintext"] = True
    extension = injector("a", **config)
    del extension["config"]["secretRef"]
    objects = [
        m.gateway(m.http_listener(8080)), *SECRETS, m.secret("pem", {"pem": pem(RSA_KEY)}),
        m.ip_backend("idp", 80, "169.254.169.254"), m.backend("a", "a.example", 80, extensions=[extension]),
        m.http_route("r", m.prefix_rule("/", "a")),
    ]  # fmt: skip
    talk = converse(objects)
    talk.client >> get()
    talk.dialled("a.example", 80)
    status, _, _, _ = talk.client.answer()
    assert (status, talk.record()["reason"]) == (503, "credential_missing")
    assert "169.254.169.254" in talk.record()["detail"]
    assert not any(KEYS["a"] in origin.received for origin in talk.origins)
    assert len(talk.origins) == 1
