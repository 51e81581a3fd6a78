"""Payload processing in the working group's form (proposal 7), with a server behind a socket."""

from __future__ import annotations

import pytest

from egressproxy.envoy.ext_proc.messages import ImmediateResponse, MessagePart, ProcessingResponse
from egressproxy.envoy.ext_proc.wire import response_bytes
from tests.envoy.processors.server import Processor
from tests.gateway.kit import OK, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation, conversation

POST = b"POST /x HTTP/1.1\r\nHost: app.example\r\nContent-Length: 6\r\n\r\nsecret"
PROCESSORS = [
    {
        "name": "guard",
        "backendRefs": [{"group": m.OURS, "kind": "Backend", "name": "guard"}],
        "config": {"phases": {"requestHeaders": True, "requestBody": True}, "context": {"tenant_id": "customer-a"}},
    }
]
PIPELINE = m.manifest(
    "gateway.networking.k8s.io/v1alpha1", "PayloadProcessingPipeline", "guarded", "agents",
    spec={"processors": PROCESSORS},
)  # fmt: skip
INLINE = {"type": "PayloadProcessing", "payloadProcessing": PROCESSORS}
BY_REF = {"type": "PayloadProcessingRef", "payloadProcessingRef": {"name": "guarded"}}


def guarded(entry: m.Manifest) -> list[m.Manifest]:
    server = m.backend("guard", "guard.example", 9000, protocol="GRPC")
    return reverse({**m.prefix_rule("/", "a"), "filters": [entry]}, objects=(server, PIPELINE))


def begun(entry: m.Manifest, wire: str) -> tuple[Conversation, Processor]:
    """A request whose head the server has let pass, and whose body it is shown."""
    talk = conversation(guarded(entry), wire=wire)
    talk.counts_octets = False
    talk.client >> POST
    processor = Processor(talk)
    processor.asked(MessagePart.REQUEST_HEADERS)
    (call,) = processor.http2.calls.values()
    assert call.headers[b"tenant_id"] == b"customer-a"
    processor.says(response_bytes(ProcessingResponse(MessagePart.REQUEST_HEADERS)))
    processor.asked(MessagePart.REQUEST_BODY)
    return talk, processor


@pytest.mark.parametrize("wire", ["memory", "sockets"])
@pytest.mark.parametrize("entry", [INLINE, BY_REF], ids=["inline", "by reference"])
def test_a_body_waits_for_the_judgement_of_the_server(entry: m.Manifest, wire: str):
    talk, processor = begun(entry, wire)
    assert not talk.dialer.dials
    processor.says(response_bytes(ProcessingResponse(MessagePart.REQUEST_BODY)))
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST /x .*?\r\n\r\nsecret")
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\nhi")
    talk.close()


@pytest.mark.parametrize("entry", [INLINE, BY_REF], ids=["inline", "by reference"])
def test_what_the_server_refuses_never_leaves(entry: m.Manifest):
    talk, processor = begun(entry, "memory")
    processor.says(response_bytes(ProcessingResponse(immediate=ImmediateResponse(403, body=b"no"))))
    talk.client.take(rb"HTTP/1.1 403 .*?\r\n\r\nno")
    assert not talk.dialer.dials
    talk.close()
