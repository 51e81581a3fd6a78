"""Spellings of a request target: a rule for a path holds for whatever its backend may read as that path."""

from __future__ import annotations

import pytest

from tests.gateway.conftest import Start
from tests.gateway.h2 import speak_http2
from tests.support import manifests as m
from tests.support.manifests import Manifest

ROUTE: list[Manifest] = [
    m.policy(["a.example"]),
    m.backend("a", "a.example", 80),
    m.http_route(
        "route",
        m.prefix_rule("/", "a"),
        {
            "matches": [{"path": {"type": "PathPrefix", "value": "/admin"}}],
            "filters": [{"type": "RequestRedirect", "requestRedirect": {"hostname": "guard.example"}}],
        },
    ),
]
#: By spelling: of the path for which there is a rule, refused, or of another path that goes on as it came.
GUARDED, REFUSED, PASSED = 302, 400, 200
SPELLINGS = {
    b"/admin": GUARDED,
    b"/admin/x": GUARDED,
    b"/admin?x": GUARDED,
    b"/%61dmin": GUARDED,
    b"/x/../admin": REFUSED,
    b"/x%2f..%2fadmin": REFUSED,
    b"/x%5c..%5cadmin": REFUSED,
    b"/x%255c..%255cadmin": REFUSED,
    rb"/x\..\admin": REFUSED,
    rb"/x/..\admin?y": REFUSED,
    rb"/\admin": REFUSED,
    rb"\admin": REFUSED,
    rb"/admin\x": REFUSED,
    rb"/admin\?x": REFUSED,
    b"/admin#x": REFUSED,
    b"/#/../admin": REFUSED,
    b"/?x#y": REFUSED,
    b"/#": REFUSED,
    "/ädmin".encode(): REFUSED,
    b"/adm\xa1n": REFUSED,
    "/?ä".encode(): REFUSED,
    b"/%c3%a4dmin": PASSED,
    b"/admin%23": PASSED,
    b"/x?/../admin": PASSED,
    # What fetch of Node, httpx, curl and Go send of a query as it was written.
    rb"/x?folder=C:\..\admin": PASSED,
    b"/x?a={b}|^`'": PASSED,
}


@pytest.mark.parametrize("listener", [m.forward_listener(3128), m.http_listener(8080)], ids=["forward", "reverse"])
@pytest.mark.parametrize(("target", "verdict"), SPELLINGS.items(), ids=map(repr, SPELLINGS))
def test_a_target_of_http1(converse: Start, listener: Manifest, target: bytes, verdict: int):
    is_forward = listener["name"] == "forward"
    talk = converse([m.gateway(listener), *ROUTE])
    asked = b"http://a.example" + target if is_forward else target
    talk.client >> b"GET " + asked + b" HTTP/1.1\r\nHost: a.example\r\n\r\n"
    if verdict == PASSED:
        talk.dialled("a.example", 80)
        talk.origin << b"GET " + target + b" HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\n\r\n"
        talk.origin >> b"HTTP/1.1 204 No Content\r\n\r\n"
        talk.client.take(rb"HTTP/1.1 204 .*?\r\n\r\n")
        return
    talk.no_dial()
    status, *_, error = talk.client.answer()
    assert status == verdict
    if verdict == REFUSED:
        assert error["reason"] == "bad_target"


@pytest.mark.parametrize("listener", [m.forward_listener(3128), m.http_listener(8080)], ids=["forward", "reverse"])
@pytest.mark.parametrize(("target", "verdict"), SPELLINGS.items(), ids=map(repr, SPELLINGS))
def test_a_path_of_http2(converse: Start, listener: Manifest, target: bytes, verdict: int):
    talk = converse([m.gateway(listener), *ROUTE])
    client = speak_http2(talk)
    stream = client.ask(b"GET", target)
    if verdict == PASSED:
        talk.dialled("a.example", 80)
        talk.origin << b"GET " + target + b" HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\n\r\n"
        talk.origin >> b"HTTP/1.1 204 No Content\r\n\r\n"
        client.settle()
        assert client.answer(stream).status == 204
        return
    talk.no_dial()
    assert client.answer(stream).status == verdict
