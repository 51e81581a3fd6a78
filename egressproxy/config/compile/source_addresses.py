"""`sourceAddress` of an EgressPolicy or a Backend: its IR, and what this machine lacks of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from egressproxy.config.resources.source_address import SourceAddress
from egressproxy.ir.policy import SourceAddressIR


def source_address(written: SourceAddress | None, owner: str) -> SourceAddressIR | None:
    """The section as IR; `owner` is the object that has it, for messages."""
    if written is None:
        return None
    return SourceAddressIR(written.addresses, written.pool, written.interface or "", owner)


def missing_sources(written: SourceAddress | None, why_unusable: Callable[[str], str]) -> Iterator[str]:
    """A sentence for each address or interface of the section that this machine has not."""
    if written is None:
        return
    lists = (("addresses", written.addresses), ("pool", written.pool))
    named = [(f"{name}[{index}]", str(each)) for name, values in lists for index, each in enumerate(values)]
    if written.interface is not None:
        named.append(("interface", written.interface))
    for field, value in named:
        why = why_unusable(value)
        if why:
            yield (
                f"spec.sourceAddress.{field}: {value} is not on this machine ({why}); what would go out from there is "
                "refused (503)"
            )
