"""What a name leads to, with a verdict on each address, as a dial would decide it. For `explain` and for `dns`."""

from __future__ import annotations

from typing import Any

from egressproxy.gateway.backends.opener import ConnectionOpener
from egressproxy.gateway.backends.reverse_check import find_names, raise_unless_one_agrees
from egressproxy.ir.policy import ReverseCheck
from egressproxy.model.authority import Authority, IPAddress
from egressproxy.upstream.dns_cache import Resolved


def address_values(address: IPAddress, port: int, verdict: str, why: str) -> dict[str, Any]:
    """One address as plain values; `verdict` is "dial" or "refuse"."""
    return {"address": str(address), "port": port, "verdict": verdict, "why": why}


async def describe_resolved(made: dict[str, Any], opener: ConnectionOpener, host: str, port: int) -> None:
    """Resolve a name as the traffic of this opener does, and put into `made` what it leads to: `dns` (whether a server
    was asked), `cnames` where there are any, and `addresses`.

    Raises UpstreamFault and Denied as a dial does, with `made` filled as far as is known.
    """
    resolver, policy = opener.resolver, opener.address_policy()
    why_not_asked = resolver.why_not_asked(host)
    made["dns"] = f"not asked: {why_not_asked}" if why_not_asked else "asked"
    found = await resolver.resolve(host)
    through = found.through if isinstance(found, Resolved) else ()
    if through:
        made["cnames"] = list(through)
    made["addresses"] = []
    for address in found:
        may_be_dialled, why = policy.verdict(host, address, port, through)
        made["addresses"].append(address_values(address, port, "dial" if may_be_dialled else "refuse", why))
    left = policy.check(host, found, port)
    if opener.reverse_check is ReverseCheck.OFF or why_not_asked:
        return
    findings = await find_names(resolver, host, left, through)
    said = {str(each.address): f"{each.result}: {each.why}" for each in findings}
    for each in made["addresses"]:
        each["reverse"] = said.get(each["address"], "not asked")
        if opener.reverse_check is ReverseCheck.ENFORCE and not each["reverse"].startswith("agrees"):
            each["verdict"] = "refuse"
    if opener.reverse_check is ReverseCheck.ENFORCE:
        raise_unless_one_agrees(Authority(host, port), findings)
