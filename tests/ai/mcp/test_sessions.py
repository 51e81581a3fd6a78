"""Sessions of MCP: their requests go to the endpoint that has made them, and ids of nobody's making get 404."""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.filters.base import Filter, Phase, RepeatRequest
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.model.secret import SecretBytes
from tests.gateway.backends.test_retries import pods
from tests.gateway.conftest import Start
from tests.support import manifests as m
from tests.support.conversation import Conversation, scripted_filter

PODS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
INITIALIZE = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}'
CALL = b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"search"}}'


def tools(name: str = "tools", **more: Any) -> m.Manifest:
    """An MCP backend over the endpoints of the Service `pods`."""
    port = {"number": 80, "protocol": "MCP", "tls": {"mode": "None"}}
    destination = {"type": "Service", "service": {"name": "pods"}, "ports": [port]}
    return m.manifest(f"{m.OURS}/v1alpha1", "Backend", name, "agents", spec={"destination": destination, **more})


def to_tools(*addresses: str, backend: m.Manifest | None = None, **rule: Any) -> list[m.Manifest]:
    made = m.prefix_rule("/", "tools", **rule)
    return [
        m.gateway(m.http_listener(8080)),
        m.http_route("route", made),
        backend or tools(),
        *pods(*(addresses or PODS)),
    ]


def sends(talk: Conversation, body: bytes = CALL, method: str = "POST", **fields: str) -> None:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    head = f"{method} /mcp HTTP/1.1\r\nHost: x\r\n{lines}"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    talk.client >> head.encode() + b"\r\n" + body


def served(talk: Conversation, session: str = "", status: int = 200) -> tuple[str, str, str]:
    """The request reaches an endpoint, which answers, with a session id of its own where one is given. Returns the
    endpoint's address, the session id that it saw, and the one that the client gets.
    """
    if talk.dialer.dials:
        address, port = talk.dialer.dials[0].endpoints[0]
        talk.dialled(talk.names.name_of(address), port)
        talk.origin.address = str(address)  # type: ignore[attr-defined]
    origin = next(peer for peer in talk.origins if peer.got)
    head = origin.take(rb"[A-Z]+ /mcp HTTP/1.1\r\n.*?\r\n\r\n")[0].decode()
    length = re.search(r"Content-Length: (\d+)", head)
    if length:
        origin.take(rb".{%s}" % length[1].encode())
    field = f"mcp-session-id: {session}\r\n" if session else ""
    origin >> f"HTTP/1.1 {status} OK\r\n{field}Content-Length: 0\r\n\r\n".encode()
    answer = talk.client.take(rb"HTTP/1.1 %d .*?\r\n\r\n" % status)[0].decode()
    return origin.address, session_in(head), session_in(answer)  # type: ignore[attr-defined]


def session_in(head: str) -> str:
    found = re.findall(r"(?i)\r\nmcp-session-id: ([^\r]*)", head)
    assert len(found) <= 1
    return found[0] if found else ""


def refused(talk: Conversation) -> tuple[int, Any]:
    head = talk.client.take(rb"HTTP/1.1 (\d{3}) .*?Content-Length: (\d+)\r\n(?:[^\r]+\r\n)*\r\n")
    return int(head[1]), json.loads(talk.client.take(rb".{%d}" % int(head[2]))[0])


def begun(talk: Conversation, server_id: str = "s.1") -> tuple[str, str]:
    """A new session: its endpoint, and the id that the client has of it."""
    sends(talk, INITIALIZE)
    endpoint, seen, session = served(talk, server_id)
    assert seen == ""
    assert session.startswith(f"{server_id}.")
    assert re.fullmatch(r"[!-~]+", session)
    return endpoint, session


def test_requests_of_a_session_go_to_the_endpoint_that_has_made_it(converse: Start):
    talk = converse(to_tools())
    sessions = [begun(talk, f"s{number}") for number in range(3)]
    assert {endpoint for endpoint, _ in sessions} == set(PODS)
    for _ in range(2):
        for number, (endpoint, session) in enumerate(sessions):
            sends(talk, Mcp_Session_Id=session)
            assert served(talk, f"s{number}") == (endpoint, f"s{number}", session)  # the same id again
    for method in ("GET", "DELETE"):
        sends(talk, b"", method=method, mcp_session_id=sessions[1][1])
        assert served(talk)[:2] == (sessions[1][0], "s1")
    assert sessions[1][1] not in json.dumps(talk.records)


def test_a_session_of_a_client_that_is_known_is_for_nobody_else(converse: Start):
    """The gateway has the credential for the server, which so cannot tell its clients apart."""
    talk = converse(to_tools())
    (connection,) = talk.ports[0].state.connections
    robot = CallerIdentity("team", "robot", name="system:serviceaccount:team:robot", source="token")
    connection.identity = robot
    endpoint, session = begun(talk)
    for who in (
        ANONYMOUS,
        CallerIdentity("team", "robot", name="system:serviceaccount:team:other"),
        CallerIdentity(name="robot"),
    ):
        connection.identity = who
        sends(talk, Mcp_Session_Id=session)
        assert refused(talk)[0] == 404
    connection.identity = CallerIdentity("team", "robot", "192.0.2.7", name=robot.name, groups=("more",))
    sends(talk, Mcp_Session_Id=session)
    assert served(talk, "s.1") == (endpoint, "s.1", session)
    connection.identity = ANONYMOUS
    _, session = begun(talk)
    connection.identity = robot
    sends(talk, Mcp_Session_Id=session)
    assert refused(talk)[0] == 404


def tampered(session: str) -> list[str]:
    server_id, _, signed = session.rpartition(".")
    token = urlsafe_b64decode(signed + "==")
    flipped = [token[:at] + bytes([token[at] ^ 1]) + token[at + 1 :] for at in (0, 11, 12, 27)]
    others = [signed[:-1] + ("B" if signed[-1] != "B" else "C"), signed[:-1], f"{signed}=", "A" * 38, "!" * 38]
    others += [urlsafe_b64encode(each).decode().rstrip("=") for each in flipped]
    return [
        server_id,
        signed,
        f".{signed}",
        f"x{session}",
        f"{server_id}x.{signed}",
        *(f"{server_id}.{x}" for x in others),
    ]


def test_an_id_that_was_changed_is_not_found(converse: Start):
    talk = converse(to_tools())
    _, session = begun(talk)
    for shown in tampered(session):
        sends(talk, Mcp_Session_Id=shown)
        status, said = refused(talk)
        assert (status, said["id"], said["error"]["code"]) == (404, 2, -32600), shown
        assert said["error"]["data"]["reason"] == "mcp_session"
    assert talk.record()["reason"] == "mcp_session"
    sends(talk, Mcp_Session_Id=session)
    assert served(talk)[1] == "s.1"


def test_an_id_of_another_backend_or_route_is_not_found(converse: Start):
    made = to_tools()
    made[1]["spec"]["rules"].append(m.prefix_rule("/other", "other"))
    made += [tools("other"), m.http_route("second", m.prefix_rule("/second", "tools"))]
    talk = converse(made)
    _, session = begun(talk)
    for path in ("/other", "/second"):
        talk.client >> f"GET {path} HTTP/1.1\r\nHost: x\r\nMcp-Session-Id: {session}\r\n\r\n".encode()
        assert refused(talk)[0] == 404


def test_two_ids_are_refused(converse: Start):
    talk = converse(to_tools())
    _, session = begun(talk)
    talk.client >> f"GET /mcp HTTP/1.1\r\nHost: x\r\n{f'Mcp-Session-Id: {session}{chr(13)}{chr(10)}' * 2}\r\n".encode()
    assert refused(talk)[0] == 400


def test_other_spellings_of_the_field_do_not_reach_the_server(converse: Start):
    talk = converse(to_tools())
    talk.client >> b"GET /mcp HTTP/1.1\r\nHost: x\r\nMcp_Session_Id: raw\r\n\r\n"
    assert served(talk)[1] == ""
    assert "raw" not in json.dumps(talk.records)


def test_the_key_is_all_that_gateways_share(converse: Start):
    one, other, stranger = converse(to_tools()), converse(to_tools()), converse(to_tools())
    for talk in (one, other):
        talk.network.session_key = SecretBytes(b"k" * 32)
        talk.reload(to_tools())
    endpoint, session = begun(one)
    sends(other, Mcp_Session_Id=session)
    assert served(other)[:2] == (endpoint, "s.1")
    sends(stranger, Mcp_Session_Id=session)
    assert refused(stranger)[0] == 404


def test_a_session_survives_a_reload_and_ends_with_its_endpoint(converse: Start):
    talk = converse(to_tools())
    endpoint, session = begun(talk)
    talk.reload(to_tools(*reversed(PODS)))
    sends(talk, Mcp_Session_Id=session)
    assert served(talk)[0] == endpoint
    talk.reload(to_tools(*(address for address in PODS if address != endpoint)))
    sends(talk, Mcp_Session_Id=session)
    assert refused(talk)[0] == 404


def test_a_session_whose_endpoint_refuses_connections_is_asked_for_elsewhere(converse: Start):
    talk = converse(to_tools())
    endpoint, session = begun(talk)
    talk.origin.leaves()
    sends(talk, Mcp_Session_Id=session)
    dial = talk.pending_dial()
    assert dial is not None
    assert str(dial.endpoints[0][0]) == endpoint
    fault = UpstreamFault(Reason.CONNECT_REFUSED, "refused", status=503, retry=RetrySafety.SAFE)
    talk.refused(endpoint, 8080, fault)
    moved, seen, _ = served(talk, status=404)  # it does not know the session, and the client begins a new one
    assert (moved != endpoint, seen) == (True, "s.1")


def test_retries_of_a_session_stay_with_its_endpoint(converse: Start):
    talk = converse(to_tools(retry={"attempts": 3, "codes": [503], "backoff": "0s"}))
    endpoint, session = begun(talk)
    sends(talk, Mcp_Session_Id=session)
    for _ in range(3):
        talk.origin.take(rb"POST /mcp .*?\r\n\r\n\{.*?\}\}")
        talk.origin >> b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"
    assert served(talk)[:2] == (endpoint, "s.1")


def test_a_revision_without_sessions_goes_anywhere_and_without_an_id(converse: Start):
    talk = converse(to_tools())
    sends(talk, MCP_Protocol_Version="2026-07-28", Mcp_Session_Id="anything")
    assert served(talk)[1] == ""


def test_the_session_persistence_of_a_rule_holds_beside_it(converse: Start):
    talk = converse(to_tools(sessionPersistence={"type": "Header", "sessionName": "X-Place"}))
    sends(talk, INITIALIZE)
    address, port = talk.dialer.dials[0].endpoints[0]
    talk.dialled(str(address), port)
    talk.origin.take(rb"POST .*?\r\n\r\n")
    talk.origin << INITIALIZE
    talk.origin >> b"HTTP/1.1 200 OK\r\nMcp-Session-Id: s\r\nContent-Length: 0\r\n\r\n"
    answer = talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")[0].decode()
    place = re.search(r"(?i)x-place: (\S+)", answer)
    assert place is not None
    talk.origin.address = str(address)  # type: ignore[attr-defined]
    for _ in range(3):
        sends(talk, X_Place=place[1])
        assert served(talk)[0] == str(address)
        sends(talk, Mcp_Session_Id=session_in(answer))
        assert served(talk)[:2] == (str(address), "s")


@pytest.mark.parametrize("weight", [1, 0])
def test_a_session_of_a_weighted_rule_stays_with_its_backend(converse: Start, weight: int):
    weights = {"tools": weight, "plain": 1_000_000}
    refs = [{"group": m.OURS, "kind": "Backend", "name": name, "weight": weight} for name, weight in weights.items()]
    after = [*to_tools(), m.backend("plain", "plain.example", 80)]
    after[1]["spec"]["rules"][0]["backendRefs"] = refs
    talk = converse(to_tools())
    endpoint, session = begun(talk)
    talk.reload(after)
    for _ in range(3):
        sends(talk, Mcp_Session_Id=session)
        assert served(talk)[:2] == (endpoint, "s.1")
    sends(talk, INITIALIZE)
    elsewhere, _, unsigned = served(talk, "of-no-mcp-server")
    assert (elsewhere not in PODS, unsigned) == (True, "of-no-mcp-server")


def test_the_id_of_a_session_goes_to_no_other_backend(converse: Start):
    refs = [{"group": m.OURS, "kind": "Backend", "name": "tools"}]
    refs.append({"group": m.OURS, "kind": "Backend", "name": "plain", "weight": 1_000_000})
    after = [*to_tools(), m.backend("plain", "plain.example", 80)]
    after[1]["spec"]["rules"][0]["backendRefs"] = refs
    talk = converse(to_tools())
    endpoint, session = begun(talk)
    talk.reload(after)
    talk.origin.leaves()
    sends(talk, Mcp_Session_Id=session)
    fault = UpstreamFault(Reason.CONNECT_REFUSED, "refused", status=503, retry=RetrySafety.SAFE)
    talk.refused(endpoint, 8080, fault)
    moved, seen, _ = served(talk, status=404)
    assert moved in {*PODS} - {endpoint}
    assert seen == "s.1"


def test_a_session_does_not_follow_a_failover(converse: Start):
    talk = converse([
        m.gateway(m.http_listener(8080)),
        m.http_route("route", m.prefix_rule("/", "both")),
        m.failover("both", "tools", "spare"),
        tools(), m.backend("spare", "spare.example", 80), *pods(*PODS[:1]),
    ])  # fmt: skip
    endpoint, session = begun(talk)
    talk.origin.leaves()
    sends(talk, Mcp_Session_Id=session)
    fault = UpstreamFault(Reason.CONNECT_REFUSED, "refused", status=503, retry=RetrySafety.SAFE)
    talk.refused(endpoint, 8080, fault)
    assert refused(talk)[0] == 404
    assert not talk.dialer.dials
    sends(talk, Mcp_Session_Id=session)  # the first one is put aside by now
    assert refused(talk)[0] == 404
    assert not talk.dialer.dials
    sends(talk, INITIALIZE)
    assert served(talk)[0] not in PODS


class Renewing(Filter):
    """Sends another token after each refusal, as McpAuthorization does."""

    runs_in = frozenset((Phase.BACKEND_REQUEST, Phase.BACKEND_RESPONSE))
    sent = 0

    def backend_request(self, exchange):
        self.sent += 1
        exchange.request.fields.set(b"Authorization", b"Bearer %d" % self.sent)

    def backend_response(self, exchange):
        if exchange.response.status == 401:
            raise RepeatRequest("credential_renewed", "repeat the request")


@pytest.mark.parametrize("has_session", [True, False])
def test_a_request_goes_once_more_with_a_renewed_credential_to_the_endpoint_of_its_session(
    converse: Start, has_session
):
    backend = tools(extensions=[scripted_filter("renewing", "backend-request")])
    talk = converse(to_tools(*(PODS if has_session else PODS[:1]), backend=backend), filters={"renewing": Renewing()})
    endpoint, session = begun(talk)
    sends(talk, **({"Mcp_Session_Id": session} if has_session else {}))
    (origin,) = (peer for peer in talk.origins if peer.got)
    for token in (b"2", b"3"):
        origin.take(rb"POST /mcp HTTP/1.1\r\n.*Authorization: Bearer %b\r\n.*?\r\n\r\n" % token)
        origin << CALL
        origin >> b"HTTP/1.1 401 X\r\nContent-Length: 0\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 502 .*\r\n\r\n.*repeat the request.*")
    assert origin.address == endpoint
