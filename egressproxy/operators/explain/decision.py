"""Decision: what the data plane would decide about a request, on names alone: a recorder drives the pipeline of
exchanges as far as that. Opens no connection, asks no name server, runs no filter, counts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import time
from typing import Final

from egressproxy.errors import GatewayError
from egressproxy.gateway.exchange import admission
from egressproxy.gateway.exchange.pipeline import (
    ACCEPT,
    ENTER_GATE,
    IDENTIFY,
    INTERCEPT,
    READ_HTTP,
    START_CLOCK,
    Pipeline,
)
from egressproxy.gateway.open_connections import OpenConnections
from egressproxy.gateway.route import Route
from egressproxy.gateway.snapshot import ActiveListener, Port, Snapshot
from egressproxy.ir.gateway import ListenerProtocol
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.operators.explain.hypothetical_request import HypotheticalRequest, HypotheticalRequestError
from egressproxy.protocols.tls.client_hello import ClientHello

#: Behind these actions nothing is decided on names.
_DECIDED: Final = frozenset((INTERCEPT, READ_HTTP, START_CLOCK))


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
    HypotheticalRequestError for a request that no client could send, or that is not for just one listener, and for an
    API key that the listener does not have.
    """
    question.check()
    port = question.port(snapshot)
    exchange = Exchange("-", port.first.gateway, port.first.name, 0.0)
    exchange.identity = _client_of_key(port, question.key) if question.key else question.identity
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


def _client_of_key(port: Port, name: str) -> CallerIdentity:
    """The client of an API key, by the name of the key's entry. Raises HypotheticalRequestError."""
    rules = [each.spec.policy.identity for each in port.listeners if each.spec.policy.identity is not None]
    keys = {key.grant.entry: key for each in rules for key in each.api_keys or ()}
    found = [key for entry, key in keys.items() if name in (entry, entry.rpartition("#")[2])]
    if not found:
        known = f": it has {', '.join(sorted(keys)[:10])}" if keys else ""
        raise HypotheticalRequestError(f"the listener has no API key {name}{known}")
    if len(found) > 1:
        entries = ", ".join(each.grant.entry for each in found)
        raise HypotheticalRequestError(f"the API key {name} may be one of several: {entries}")
    from egressproxy.identity.api_keys import client_of_key  # here: few questions name one

    key = found[0]
    if time() >= key.not_after:
        raise HypotheticalRequestError(f"the API key {name} has expired: the gateway refuses all requests with it")
    return client_of_key(key)


def _decide_request(made: Decision) -> None:
    exchange, port, question = made.exchange, made.port, made.question
    head = exchange.request = question.head(port)
    exchange.method = head.method
    server_name = ""
    if port.first.spec.protocol is ListenerProtocol.HTTPS and question.authority:
        server_name = admission.read_authority(question.authority.encode(), port.number).host
    pipeline = Pipeline()
    _record(made, pipeline, pipeline.request(exchange, head, port, server_name, None))


def _decide_tunnel(made: Decision) -> None:
    exchange = made.exchange
    head = exchange.request = made.question.head(made.port)
    exchange.method = head.method
    pipeline = Pipeline()
    _record(made, pipeline, pipeline.tunnel(exchange, head, made.listener, is_inside=False))
    assert exchange.authority is not None
    opened = made.listener.certificates_for(exchange.authority.host)
    if opened is not None:
        made.opened_by = opened.policy


def _decide_stream(made: Decision) -> None:
    """With a ClientHello that names the host."""
    exchange, port = made.exchange, made.port
    exchange.method, exchange.is_tunnel = b"CONNECT", True
    host = admission.read_authority(made.question.authority.encode(), 443).host
    hello = None
    if port.first.spec.protocol is not ListenerProtocol.TCP:
        hello = ClientHello(host, (), (), has_ech=False)
    pipeline = Pipeline()
    _record(made, pipeline, pipeline.stream(exchange, OpenConnections(port), hello))
    if made.opened_by:
        assert exchange.authority is not None
        exchange.is_tunnel, exchange.scheme = False, b"https"  # as of each request inside
        exchange.request = made.question.head(port)
        admission.refuse_loops(exchange.request, made.pseudonym)
        made.route, noted = admission.default_route(made.listener, exchange.authority)
        exchange.route = made.route.name
        exchange.note_denials(*noted)


def _record(made: Decision, pipeline: Pipeline, actions: Iterator[str]) -> None:
    """Take the actions of the pipeline as far as they are decided on names. Raises what refuses the request."""
    exchange = made.exchange
    try:
        for action in actions:
            if action == IDENTIFY and exchange.has_request:
                admission.refuse_loops(exchange.request, made.pseudonym)
            elif action == ACCEPT:
                assert pipeline.listener is not None
                assert exchange.authority is not None
                made.tls_route, pipeline.speaks_http = admission.ways_to_http_port(
                    pipeline.listener, exchange.authority
                )
            elif pipeline.listener is not None and pipeline.route is pipeline.listener.pre_route is not None:
                continue  # filters of the listener: what they change is not known
            elif action in _DECIDED or (action == ENTER_GATE and not _asks_first_byte(pipeline)):
                break
    finally:
        if pipeline.listener is not None:
            made.listener = pipeline.listener
        for listener in made.port.listeners:
            if (listener.gateway, listener.name) == (
                exchange.gateway,
                exchange.listener,
            ) and listener.variants is not None:
                made.has_subjects, made.has_conditions = True, listener.variants.depends_on_more
        if pipeline.certificates is not None:
            made.opened_by = pipeline.certificates.policy
    made.route = pipeline.route
    if made.route is not None:
        exchange.route, exchange.series = made.route.name, made.route.series


def _asks_first_byte(pipeline: Pipeline) -> bool:
    """Whether the pipeline is that of a tunnel to port 80, whose way depends on what the client says in it."""
    return pipeline.route is None and pipeline.certificates is None
