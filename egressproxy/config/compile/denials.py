"""Denials: backends whose place a policy denies, for the status of the routes that lead there.

Depends on configuration alone: the hostname of an Fqdn backend, the addresses of an Ip or Service backend, or those of
a parent on the way. The data plane decides by the functions that decide here, and tells it in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from egressproxy.config.compile.contract import RefusesBackends
from egressproxy.errors import Reason
from egressproxy.spec.policy import Mode, PolicySpec
from egressproxy.spec.route import WeightedBackend

__all__ = ["Denials"]


class Denials:
    """Asks about many backends under few policies; each policy is compiled once."""

    __slots__ = ("_compile", "_compiled")

    def __init__(self, compile_policy: Callable[[PolicySpec], RefusesBackends]) -> None:
        self._compile = compile_policy
        self._compiled: dict[int, RefusesBackends] = {}  # by identity: merged policies live as long as a compilation

    def sentences(
        self, listener: str, served: Iterable[WeightedBackend], mirrors: Iterable[WeightedBackend]
    ) -> list[str]:
        """What status says of the backends of a route on one listener, each once."""
        said = []
        for text, remedy, holds in self._denied(served):
            if holds:
                said.append(f"{text}: listener {listener} refuses what goes there (403). To allow it, {remedy}.")
            else:
                said.append(f"{text}: mode is Report, so listener {listener} lets it pass and counts it.")
        copied = self._denied(mirrors)
        said += [
            f"{text}: listener {listener} mirrors nothing there. To allow it, {remedy}."
            for text, remedy, holds in copied
            if holds
        ]
        return list(dict.fromkeys(said))

    def _denied(self, backends: Iterable[WeightedBackend]) -> Iterator[tuple[str, str, bool]]:
        """For each that is denied: why, what to do, and whether it is closed, or only reported."""
        for weighted in backends:
            policy = weighted.policy
            if weighted.backend is None or not (policy.destinations.deny or policy.addresses.deny):
                continue
            if id(policy) not in self._compiled:
                self._compiled[id(policy)] = self._compile(policy)
            error = self._compiled[id(policy)](weighted.backend)
            if error is not None:
                reports = policy.mode is Mode.REPORT and not error.is_firm
                holds = not reports or error.reason is Reason.ADDRESS_DENIED
                yield f"{error.message} ({error.detail})", error.remedy, holds
