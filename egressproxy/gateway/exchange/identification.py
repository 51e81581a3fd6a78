"""Identification: who a client is, by its request, its connection, and the gateways that it has passed.

The functions write into the exchange who its client is. Whether that is asked for, and when, is said in `pipeline`.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Final

from egressproxy.gateway.exchange.accounting import Accounting
from egressproxy.gateway.exchange.admission import refuse_loops
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.snapshot import ActiveListener
from egressproxy.ir.policy import PolicyIR
from egressproxy.model.caller_identity import CallerIdentity, namespace_in, service_account_name
from egressproxy.model.exchange import Exchange
from egressproxy.model.forwarded_identity import NotVerified, verify
from egressproxy.model.message import RequestHead

#: Clients of other gateways that are remembered: each request of theirs says anew who they are.
MAX_FORWARDED: Final = 1024
_identity = lru_cache(MAX_FORWARDED)(CallerIdentity)


async def identify(
    accounting: Accounting, exchange: Exchange, client: Client, listener: ActiveListener, head: RequestHead
) -> None:
    """Write into `exchange` who its client is. Credentials of the request come before those of its connection. Loops
    are refused. Waits where a credential has to be checked. Raises as `refuse_loops` and `Authenticator.admit`.
    """
    refuse_loops(head, accounting.pseudonym)
    if head.via:
        believe_gateway(accounting, exchange, listener, head)
    if listener.authenticator is not None:
        checking = listener.authenticator.admit(exchange, client, head)
        if checking is not None:
            await checking


def identify_stream(exchange: Exchange, listener: ActiveListener, certified: CallerIdentity, until: float) -> None:
    """The same of a connection that is no HTTP, `certified` until then (seconds since 1970) by its certificate. Raises
    as `Authenticator.admit_stream`.
    """
    exchange.identity = certified
    if listener.authenticator is not None:
        listener.authenticator.admit_stream(exchange, certified, until)


def believe_gateway(accounting: Accounting, exchange: Exchange, listener: ActiveListener, head: RequestHead) -> None:
    """Learn who the client of another gateway is, where its signature holds here; else the log says why it does not."""
    keys, value = listener.spec.policy.gateway_keys, head.hop.egress_identity
    if not keys or not value or exchange.authority is None:
        return
    counted = accounting.metrics.forwarded_identities
    try:
        who = verify(keys, value, head.method, exchange.authority.text, time.time(), accounting.seen)
    except NotVerified as error:
        exchange.detail = f"X-Egress-Identity: {error}"
        counted[error.result] += 1
        return
    counted["verified"] += 1
    namespace = _local_namespace(who.namespace, listener.spec.policy)
    name = who.name
    if name in ("-", service_account_name(who.namespace, who.service_account)):
        name = service_account_name(namespace, who.service_account)
    exchange.identity = _identity(
        namespace, who.service_account, who.client, who.gateway, name, "gateway", who.groups, who.claims,
        who.claims_read,
    )  # fmt: skip


def _local_namespace(namespaced: str, policy: PolicyIR) -> str:
    namespace, _, trust_domain = namespaced.partition("@")
    own = policy.identity.trust_domain if policy.identity is not None else ""
    return namespace_in(trust_domain or policy.gateway_trust_domain, namespace, own)
