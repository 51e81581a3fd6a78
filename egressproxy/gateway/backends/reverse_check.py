"""The reverse check: of the addresses that a name leads to, those with a name that agrees (`dns.reverseCheck`).

It holds for addresses that DNS gave: not for those that a client or an operator wrote (`dns.hosts` included), since no
name led there; and not behind a parent, which resolves by itself. Each new connection is checked; one that is kept goes
on as long as its address is in the answer.

What agrees, and what the check is worth: `upstream/reverse_names`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from egressproxy.errors import Denied, Reason, UpstreamFault
from egressproxy.ir.policy import ReverseCheck
from egressproxy.model.authority import Authority, IPAddress
from egressproxy.model.exchange import Exchange
from egressproxy.model.per_client_quota import client_of
from egressproxy.upstream.resolver import Resolver
from egressproxy.upstream.reverse_names import MAX_CHECKED, AddressNames, agrees


class ReverseFinding(NamedTuple):
    """What the names of one address say."""

    address: IPAddress
    names: AddressNames
    agrees: bool

    @property
    def result(self) -> str:
        if self.agrees:
            return "agrees"
        return "differs" if self.names.reason is Reason.OK else "failed"

    @property
    def why(self) -> str:
        """A sentence for the log and for explanations."""
        if self.names.reason is not Reason.OK:
            return f"its names could not be looked up: {self.names.detail}"
        shown = ", ".join(self.names.names) or "it has no name"
        return shown if self.agrees or not self.names.names else f"its names are {shown}"


async def check_addresses(
    exchange: Exchange,
    check: ReverseCheck,
    resolver: Resolver,
    target: Authority,
    addresses: Sequence[IPAddress],
    through: tuple[str, ...],
    count: Callable[[str], None],
) -> tuple[IPAddress, ...]:
    """The addresses that may be dialled: with ENFORCE those of the first MAX_CHECKED that agree, with REPORT all of
    them, at once. `through`: as of Resolved. `count` is told the result of each address.

    Raises Denied(Reason.REVERSE_DNS_DENIED) if none agrees, or UpstreamFault with the reason of the lookup where that
    may be because one failed (503, 504 after a timeout).
    """
    asked = [(address, resolver.reverse.resolve(address, client_of(exchange))) for address in addresses[:MAX_CHECKED]]
    if check is ReverseCheck.REPORT:
        gathered = asyncio.gather(*[future for _, future in asked])
        gathered.add_done_callback(partial(_note, exchange, asked, target.host, through, count))
        return tuple(addresses)
    findings = [_finding(address, await future, target.host, through) for address, future in asked]
    for each in findings:
        count(each.result)
    return raise_unless_one_agrees(target, findings)


async def find_names(
    resolver: Resolver, host: str, addresses: Sequence[IPAddress], through: tuple[str, ...]
) -> list[ReverseFinding]:
    """What the check finds of these addresses; for explanations."""
    asked = [(address, resolver.reverse.resolve(address)) for address in addresses[:MAX_CHECKED]]
    return [_finding(address, await future, host, through) for address, future in asked]


def raise_unless_one_agrees(target: Authority, findings: Sequence[ReverseFinding]) -> tuple[IPAddress, ...]:
    """The addresses that agree. Raises as `check_addresses`."""
    agreeing = tuple([each.address for each in findings if each.agrees])
    if not agreeing:
        raise _fault(target, findings)
    return agreeing


def _finding(address: IPAddress, names: AddressNames, host: str, through: tuple[str, ...]) -> ReverseFinding:
    return ReverseFinding(address, names, agrees(names.names, host, through))


def _note(
    exchange: Exchange,
    asked: Sequence[tuple[IPAddress, asyncio.Future[AddressNames]]],
    host: str,
    through: tuple[str, ...],
    count: Callable[[str], None],
    gathered: asyncio.Future[list[AddressNames]],
) -> None:
    """Mode Report: the names are known. Where they come after the end of the exchange only the metric has them."""
    if gathered.cancelled() or gathered.exception() is not None:
        return  # the resolver is closed
    findings = [_finding(address, future.result(), host, through) for address, future in asked]
    for each in findings:
        count(each.result)
    if not any(each.agrees for each in findings):
        exchange.note_denials(Reason.REVERSE_DNS_DENIED)


def _fault(target: Authority, findings: Sequence[ReverseFinding]) -> Denied | UpstreamFault:
    detail = "; ".join(f"{each.address}: {each.why}" for each in findings)
    failed = next((each.names.reason for each in findings if each.names.reason is not Reason.OK), None)
    if failed is not None:
        message = f"the names of the addresses of {target.host} could not be looked up, and dns.reverseCheck needs them"
        return UpstreamFault(failed, message, status=504 if failed is Reason.DNS_TIMEOUT else 503, detail=detail)
    return Denied(
        Reason.REVERSE_DNS_DENIED,
        f"no address of {target} has a name (PTR) that agrees with {target.host}, which dns.reverseCheck demands",
        remedy=f"have PTR records written that name {target.host} or a name below it, write its addresses in "
        "dns.hosts, or set dns.reverseCheck to Report in a policy of its route or Backend",
        detail=detail,
    )
