"""Decision: what the data plane would decide about a request, on names alone, by the functions that decide about
traffic. Opens no connection, asks no name server, runs no filter, counts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from egressproxy.errors import GatewayError
from egressproxy.gateway.exchange import admission
from egressproxy.gateway.explain.hypothetical_request import HypotheticalRequest
from egressproxy.gateway.route import Route
from egressproxy.gateway.snapshot import ActiveListener, Port, Snapshot
from egressproxy.ir.gateway import ListenerProtocol
from egressproxy.model.exchange import Exchange
from egressproxy.protocols.tls.client_hello import ClientHello


@dataclass(slots=True)
class Decision:
    """`route` None with no `error`: a tunnel to port 80, or one that is opened, whose requests are decided one by one.
    `opened_by`: the policy whose `intercept` names the host of that, "" where none does.

    `tls_route`: what TLS in such a tunnel goes by; None: it is refused. `has_subjects`: policies of the listener have
    some, and with `has_conditions` some of them ask for groups or claims.
    """

    question: HypotheticalRequest
    exchange: Exchange
    port: Port
    listener: ActiveListener
    pseudonym: bytes = b""
    route: Route | None = None
    error: GatewayError | None = None
    tls_route: Route | None = None
    opened_by: str = ""
    has_subjects: bool = False
    has_conditions: bool = False

    @property
    def originates_tls(self) -> bool:
        """Whether TLS to a backend would be ours; TLS in a tunnel is the client's."""
        is_plain = self.port.first.spec.protocol is ListenerProtocol.TCP
        is_opened = self.listener.is_stream and self.opened_by != ""
        return not self.exchange.is_tunnel or self.listener.terminate is not None or is_plain or is_opened


def decide(snapshot: Snapshot, question: HypotheticalRequest, pseudonym: bytes = b"") -> Decision:
    """`pseudonym` is the name of this gateway in Via; without it no request is in a loop. Raises
    HypotheticalRequestError for a request that no client could send, or that is not for just one listener.
    """
    question.check()
    port = question.port(snapshot)
    exchange = Exchange("-", port.first.gateway, port.first.name, 0.0)
    exchange.identity = question.identity
    made = Decision(question, exchange, port, port.first, pseudonym)
    try:
        if port.is_stream or (port.is_mixed and port.leads_to_stream(question.host)):
            _decide_stream(made)
        elif question.is_connect:
            _decide_tunnel(made)
        else:
            _decide_request(made)
    except GatewayError as error:
        made.error = error.with_traceback(None)
    return made


def _find_variant(made: Decision) -> None:
    """Have the listener be what it is for who asks. Raises Denied."""
    variants = made.listener.variants
    if variants is not None:
        made.has_subjects, made.has_conditions = True, variants.depends_on_more
        made.listener = variants.of(made.exchange.identity)


def _decide_request(made: Decision) -> None:
    """As `HttpConnectionManager.serve` begins."""
    exchange, port, question = made.exchange, made.port, made.question
    head = exchange.request = question.head(port)
    exchange.method = head.method
    server_name = ""
    if port.first.spec.protocol is ListenerProtocol.HTTPS and question.authority:
        server_name = admission.read_authority(question.authority.encode(), port.number).host
    made.listener = admission.name_request(exchange, port, server_name, None, head)
    admission.refuse_loops(head, made.pseudonym)
    assert exchange.authority is not None
    _find_variant(made)
    made.route, exchange.path_prefix, noted = admission.route_request(made.listener, exchange.authority, head)
    exchange.route, exchange.series = made.route.name, made.route.series
    exchange.note_denials(*noted)


def _decide_tunnel(made: Decision) -> None:
    """As `serve_connect` begins."""
    exchange = made.exchange
    head = exchange.request = made.question.head(made.port)
    exchange.method = head.method
    exchange.is_tunnel = True
    if not made.listener.is_forward:
        raise admission.connect_not_served()
    exchange.authority = admission.read_authority(head.target, None)
    admission.refuse_loops(head, made.pseudonym)
    _find_variant(made)
    certificate_cache = made.listener.leaves_for(exchange.authority.host)
    if certificate_cache is not None:
        made.opened_by = certificate_cache.policy
        if exchange.authority.port != admission.HTTP_PORT:
            return
    if exchange.authority.port == admission.HTTP_PORT:
        made.tls_route, reads_http = admission.ways_to_http_port(made.listener, exchange.authority)
        if reads_http:
            exchange.note_denials(
                *admission.admit_http(made.listener, exchange.authority)
            )  # mode Report notes what it would refuse
            return
    made.route, noted = admission.route_tunnel(made.listener, exchange.authority)
    exchange.note_denials(*noted)
    exchange.route, exchange.series = made.route.name, made.route.series


def _decide_stream(made: Decision) -> None:
    """As `tunnel_stream` begins, with a ClientHello that names the host."""
    exchange, port = made.exchange, made.port
    exchange.method, exchange.is_tunnel = b"CONNECT", True
    host = admission.read_authority(made.question.authority.encode(), 443).host
    hello = None
    if port.first.spec.protocol is not ListenerProtocol.TCP:
        hello = ClientHello(host, (), (), has_ech=False)
    made.listener = admission.name_stream(exchange, port, hello)
    _find_variant(made)
    certificate_cache = admission.opened_stream(port, made.listener, exchange.authority)
    if certificate_cache is None:
        made.route, noted = admission.route_of_stream(made.listener, exchange.authority)
    else:
        made.opened_by = certificate_cache.policy
        assert exchange.authority is not None
        exchange.is_tunnel, exchange.scheme, exchange.request = (
            False,
            b"https",
            made.question.head(port),
        )  # as of each request inside
        admission.refuse_loops(exchange.request, made.pseudonym)
        made.route, noted = admission.default_route(made.listener, exchange.authority)
    exchange.route = made.route.name
    exchange.note_denials(*noted)
