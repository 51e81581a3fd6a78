"""DeniedBackends: those whose destination a policy denies, for the status of the routes that lead there.

Depends on configuration alone: the hostname of an Fqdn backend, the addresses of an Ip or Service backend, or those of
a parent on the way, and whether a credential would go in plain text. The data plane decides by the functions that
decide here, and tells it in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from egressproxy.config.compile.interface import RefusesBackends
from egressproxy.config.compile.policies.credential_exposure import requires_tls
from egressproxy.errors import Reason
from egressproxy.ir.backend import Destination
from egressproxy.ir.policy import Mode, PolicyIR
from egressproxy.ir.route import WeightedBackend

#: As the filter says it to who asks.
PLAINTEXT_REMEDY: Final = "add `tls` to the Backend, or `allowPlaintext: true` to the filter's config"


class DeniedBackends:
    """Asks about many backends under few policies; each policy is compiled once."""

    __slots__ = ("_compile", "_compiled")

    def __init__(self, compile_policy: Callable[[PolicyIR], RefusesBackends]) -> None:
        self._compile = compile_policy
        self._compiled: dict[int, RefusesBackends] = {}  # by identity: merged policies live as long as a compilation

    def sentences(
        self,
        listener: str,
        served: Iterable[WeightedBackend],
        mirrors: Iterable[WeightedBackend],
        *,
        are_streams: bool = False,
    ) -> list[str]:
        """What status says of the backends of a route on one listener, each once. In streams filters send nothing."""
        served = tuple(served)
        sentences = [
            f"{sender} sends nothing in plain text, and {name} is not reached over TLS: listener {listener} refuses"
            f" requests to it (403). To allow it, {PLAINTEXT_REMEDY}."
            for sender, name in _in_plain_text(() if are_streams else served)
        ]
        for text, remedy, holds in self._denied(served):
            if holds:
                sentences.append(f"{text}: listener {listener} refuses what goes there (403). To allow it, {remedy}.")
            else:
                sentences.append(f"{text}: mode is Report, so listener {listener} lets it pass and counts it.")
        sentences += [
            f"{text}: listener {listener} mirrors nothing there. To allow it, {remedy}."
            for text, remedy, holds in self._denied(mirrors)
            if holds
        ]
        return list(dict.fromkeys(sentences))

    def _denied(self, backends: Iterable[WeightedBackend]) -> Iterator[tuple[str, str, bool]]:
        """For each that is denied: why, what to do, and whether it is closed, or only reported."""
        for weighted in backends:
            policy = weighted.policy
            if weighted.backend is None:
                continue
            # Addresses that the operator has written, of the backend or of a parent on the way, may be denied, too.
            has_addresses = any(each.endpoints for each in (weighted.backend, *weighted.backend.parents()))
            if not (policy.destinations.deny or policy.addresses.deny or has_addresses):
                continue
            if id(policy) not in self._compiled:
                self._compiled[id(policy)] = self._compile(policy)
            error = self._compiled[id(policy)](weighted.backend)
            if error is not None:
                reports = policy.mode is Mode.REPORT and not error.is_firm
                holds = not reports or error.reason is Reason.ADDRESS_DENIED
                yield f"{error.message} ({error.detail})", error.remedy, holds


def _in_plain_text(backends: Iterable[WeightedBackend]) -> Iterator[tuple[str, str]]:
    """The filter and the backend wherever a credential would have to go without TLS, and may not."""
    for weighted in backends:
        backend = weighted.backend
        if backend is None or backend.tls is not None or backend.destination is Destination.DYNAMIC:
            continue  # whether what a Dynamic one leads to has TLS, the request says
        for each in weighted.extensions:
            if requires_tls(each):
                yield f"filter {each.name} of {each.source}", backend.name
