"""Denials: backends whose place a policy denies, for the status of the routes that lead there.

Depends on configuration alone: the hostname of an Fqdn backend, or of a parent on the way to it. The data plane decides
by the functions that decide here, and tells it in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from egressproxy.config.compile.contract import RefusesBackends
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
        said = [f"{text}: {_consequence(each, listener)}" for each, text in self._denied(served)]
        copied = self._denied(mirrors)
        said += [f"{text}: listener {listener} mirrors nothing there" for each, text in copied if _holds(each)]
        return list(dict.fromkeys(said))

    def _denied(self, backends: Iterable[WeightedBackend]) -> Iterator[tuple[WeightedBackend, str]]:
        for weighted in backends:
            policy = weighted.policy
            if weighted.backend is None or not policy.destinations.deny:
                continue
            if id(policy) not in self._compiled:
                self._compiled[id(policy)] = self._compile(policy)
            error = self._compiled[id(policy)](weighted.backend)
            if error is not None:
                yield weighted, f"{error.message} ({error.detail})"


def _holds(weighted: WeightedBackend) -> bool:
    return weighted.policy.mode is not Mode.REPORT


def _consequence(weighted: WeightedBackend, listener: str) -> str:
    if _holds(weighted):
        return f"this route can reach nothing there, and listener {listener} answers 403"
    return f"mode is Report, so listener {listener} lets it pass and counts it"
