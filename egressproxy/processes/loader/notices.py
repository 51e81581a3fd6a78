"""What is told of a loading: Events (rejected, accepted again, a reference is broken), and problems in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from egressproxy.config.reading.problems import ConfigError, Problem, Severity
from egressproxy.processes.loader.result import ListenerAddress
from egressproxy.telemetry.event_aggregator import EventType, InvolvedObject, Notice, new_notice

log = logging.getLogger("egressproxy")

#: Problems of one configuration in the log. Traffic waits while they are written.
MAX_TOLD: Final = 200


def tell_problems(problems: Sequence[Problem]) -> None:
    """Log why a configuration is refused, one record for each problem, up to MAX_TOLD."""
    _tell([(logging.ERROR, each) for each in problems])


def tell_findings(findings: Iterable[Problem]) -> None:
    """Log what is not served as written, in the order of files and lines, and notes last."""
    ordered = sorted(
        findings, key=lambda each: (each.severity is Severity.NOTE, each.file, each.line, each.column, str(each))
    )
    _tell([(logging.INFO if each.severity is Severity.NOTE else logging.WARNING, each) for each in ordered])


def _tell(problems: Sequence[tuple[int, Problem]]) -> None:
    for level, problem in problems[:MAX_TOLD]:
        log.log(level, "%s", problem, extra={"fields": problem.as_dict()})
    if len(problems) > MAX_TOLD:
        log.warning("and %d more, which `egressproxy check` shows", len(problems) - MAX_TOLD)


def rejected(
    error: Exception, addresses: Iterable[ListenerAddress], generation: int, unbound: str = ""
) -> list[Notice]:
    """A warning for Gateways at `addresses`: the old configuration stays. `unbound`: "gateway/listener, …" at fault."""
    blamed = {_gateway(listener) for listener in unbound.split(", ") if listener}
    unbound_notices = [new_notice("ListenerNotBound", "Bind", gateway, str(error)) for gateway in sorted(blamed)]
    message = f"the new configuration is rejected, configuration {generation} stays in service: {_in_short(error)}"
    others = sorted(_gateways(addresses) - blamed)
    return unbound_notices + [new_notice("ConfigurationRejected", "Reload", gateway, message) for gateway in others]


def accepted(addresses: Iterable[ListenerAddress], generation: int) -> list[Notice]:
    """For every Gateway at `addresses`: a configuration is in service again after a rejected one."""
    message = f"configuration {generation} is in service"
    return [
        new_notice("ConfigurationAccepted", "Reload", gateway, message, severity=EventType.NORMAL)
        for gateway in sorted(_gateways(addresses))
    ]


def broken(found: Iterable[tuple[str, str]]) -> list[Notice]:
    """A warning for every object of `CompiledConfig.broken`."""
    named = ((InvolvedObject.read(name), sentence) for name, sentence in found)
    return [new_notice("ReferenceBroken", "Resolve", each, sentence) for each, sentence in named if each is not None]


def _gateways(addresses: Iterable[ListenerAddress]) -> set[InvolvedObject]:
    return {_gateway(address.listener) for address in addresses}


def _gateway(listener: str) -> InvolvedObject:
    return InvolvedObject.of("Gateway", "/".join(listener.split("/")[:2]))


def _in_short(error: Exception) -> str:
    problems: Sequence[object] = error.problems if isinstance(error, ConfigError) else ()
    if len(problems) < 2:
        return str(error).replace(":\n", ": ").replace("\n", "; ")
    return f"{problems[0]} (and {len(problems) - 1} more; the log has them all)"
