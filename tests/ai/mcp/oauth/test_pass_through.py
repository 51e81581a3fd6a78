"""Clients that authorize themselves: challenges and metadata with the gateway's URLs."""

from __future__ import annotations

import json

import pytest

from egressproxy.filters.base import BodyMode, Phase, Rejected, RepeatRequest
from egressproxy.model.fields import Fields
from egressproxy.model.message import ResponseHead
from tests.ai.mcp.oauth.kit import ISSUER, RESOURCE, exchange, made

PASS = {"mode": "PassThrough", "resource": RESOURCE}
OURS = "https://gw.example/.well-known/oauth-protected-resource/tools"
METADATA = "/.well-known/oauth-protected-resource"


def challenged(config, *challenges, target="/tools", **more):
    filter, x = made(config), exchange(target, (b"Authorization", b"Bearer of-the-client"), **more)
    assert filter.backend_request(x) is None
    assert x.request.fields.get(b"authorization") == b"Bearer of-the-client"
    x.response = ResponseHead(401, b"", Fields.of((b"WWW-Authenticate", each) for each in challenges))
    filter.backend_response(x)
    assert filter.body_mode_for(x, Phase.RESPONSE_BODY) is None
    return [value.decode() for value in x.response.fields.get_all(b"www-authenticate")]


@pytest.mark.parametrize(
    ("challenge", "changed"),
    [
        (b'Bearer resource_metadata="https://tools.example/x"', f'Bearer resource_metadata="{OURS}"'),
        (b'Bearer error="invalid_token", Resource_Metadata = "https://t/\\"x", scope="a b"',
         f'Bearer error="invalid_token", Resource_Metadata = "{OURS}", scope="a b"'),
        (b"Bearer resource_metadata=https://tools.example/x, scope=a", f'Bearer resource_metadata="{OURS}", scope=a'),
        (b"Bearer", "Bearer"),
        (b'Basic realm="x"', 'Basic realm="x"'),
    ],
)  # fmt: skip
def test_a_challenge_leads_to_the_metadata_at_the_gateway(challenge, changed):
    assert challenged(PASS, challenge) == [changed]


def test_the_url_is_the_one_that_the_client_calls_or_the_public_one():
    challenge = b'Bearer resource_metadata="x"'
    assert (
        challenged(PASS, challenge, challenge, scheme=b"http")
        == [f'Bearer resource_metadata="{OURS.replace("https", "http")}"'] * 2
    )
    (found,) = challenged(PASS, challenge, target='/too"ls, x=\\')
    assert found == f'Bearer resource_metadata="https://gw.example{METADATA}/too%22ls,%20x=%5C"'
    public = {**PASS, "publicUrl": "https://mcp.public.example:8443/a/b"}
    (found,) = challenged(public, challenge, scheme=b"http")
    assert found == f'Bearer resource_metadata="https://mcp.public.example:8443{METADATA}/a/b"'


@pytest.mark.parametrize(("path", "resource"), [("/tools", "https://gw.example/tools"), ("", "https://gw.example")])
def test_the_metadata_is_that_of_the_server_with_the_gateways_url(path, resource):
    filter, x = made(PASS), exchange(METADATA + path, (b"Accept-Encoding", b"gzip"), method="GET")
    filter.backend_request(x)
    assert x.request.path == b"/.well-known/oauth-protected-resource/mcp"
    assert x.request.fields.get(b"accept-encoding") == b"identity"
    x.response = ResponseHead(200, b"", Fields())
    filter.backend_response(x)
    assert x.response.fields.get(b"cache-control") == b"no-store"
    assert filter.body_mode_for(x, Phase.RESPONSE_BODY) is BodyMode.BUFFER
    document = {"resource": RESOURCE, "authorization_servers": [ISSUER], "signed_metadata": "ey.J.x", "x": 1}
    said = json.loads(filter.response_body(x, json.dumps(document).encode(), True))
    assert said == {"resource": resource, "authorization_servers": [ISSUER], "x": 1}
    for wrong in (b"[]", b"{", b'{"resource": "https://evil.example/mcp"}', b"[" * 60000):
        with pytest.raises(Rejected):
            filter.response_body(x, wrong, True)


def test_other_paths_and_failures_pass_as_they_are():
    filter, x = made(PASS), exchange(METADATA + "2", method="GET")
    filter.backend_request(x)
    assert x.request.path == METADATA.encode() + b"2"
    x = exchange(METADATA, method="GET")
    filter.backend_request(x)
    assert (x.request.path, answered_404(filter, x)) == (b"/.well-known/oauth-protected-resource/mcp", True)
    filter.backend_request(x)  # a server may have its metadata at the root
    assert (x.request.path, answered_404(filter, x)) == (METADATA.encode(), False)
    at_root, again = made({**PASS, "resource": "https://tools.example"}), exchange(METADATA, method="GET")
    at_root.backend_request(again)
    assert (again.request.path, answered_404(at_root, again)) == (METADATA.encode(), False)
    assert filter.body_mode_for(x, Phase.RESPONSE_BODY) is None


def answered_404(filter, x):
    """Whether the request goes once more after this status, which the client gets where it does not."""
    x.response, renewed = ResponseHead(404, b"", Fields()), None
    try:
        filter.backend_response(x)
    except RepeatRequest as error:
        renewed = error
    assert renewed is None or renewed.status == 404
    return renewed is not None
