"""The Events of a loading: the configuration is rejected or accepted again, or a reference is broken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from egressproxy.config.reading.problems import ConfigError
from egressproxy.processes.loader.result import ListenerAddress
from egressproxy.telemetry.notices import EventType, InvolvedObject, Notice, new_notice


def rejected(error: Exception, places: Iterable[ListenerAddress], generation: int, unbound: str = "") -> list[Notice]:
    """A warning for Gateways at `places`: the old configuration stays. `unbound`: "gateway/listener, …" at fault."""
    blamed = {_gateway(listener) for listener in unbound.split(", ") if listener}
    told = [new_notice("ListenerNotBound", "Bind", gateway, str(error)) for gateway in sorted(blamed)]
    message = f"the new configuration is rejected, configuration {generation} stays in service: {_in_short(error)}"
    others = sorted(_gateways(places) - blamed)
    return told + [new_notice("ConfigurationRejected", "Reload", gateway, message) for gateway in others]


def accepted(places: Iterable[ListenerAddress], generation: int) -> list[Notice]:
    """For every Gateway at `places`: a configuration is in service again after a rejected one."""
    message = f"configuration {generation} is in service"
    return [
        new_notice("ConfigurationAccepted", "Reload", gateway, message, severity=EventType.NORMAL)
        for gateway in sorted(_gateways(places))
    ]


def broken(found: Iterable[tuple[str, str]]) -> list[Notice]:
    """A warning for every object of `Loaded.broken`."""
    named = ((InvolvedObject.read(name), sentence) for name, sentence in found)
    return [new_notice("ReferenceBroken", "Resolve", each, sentence) for each, sentence in named if each is not None]


def _gateways(places: Iterable[ListenerAddress]) -> set[InvolvedObject]:
    return {_gateway(place.listener) for place in places}


def _gateway(listener: str) -> InvolvedObject:
    return InvolvedObject.of("Gateway", "/".join(listener.split("/")[:2]))


def _in_short(error: Exception) -> str:
    problems: Sequence[object] = error.problems if isinstance(error, ConfigError) else ()
    if len(problems) < 2:
        return str(error).replace(":\n", ": ").replace("\n", "; ")
    return f"{problems[0]} (and {len(problems) - 1} more; the log has them all)"
