"""Trailers on their way past filters: who sees them, and in which order (RFC 9110 section 6.5).

They go on where every filter that looks at their direction sees them. What must not come late is left out by the
gateway, behind all filters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from egressproxy.filters.base import Phase, sees_trailers
from egressproxy.filters.filter_step import PlacedFilter, Step, Steps, settle, start, wait
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields


def trailer_steps(placed: Sequence[PlacedFilter], phase: Phase) -> Steps:
    """Those of the filters that see the trailers behind REQUEST_BODY or RESPONSE_BODY, in this order."""
    name = phase.method.replace("body", "trailers")
    return tuple([Step(each, phase, (), name) for each in placed if sees_trailers(each.filter, phase)])


def let_trailers(looking: Sequence[PlacedFilter], phase: Phase) -> bool:
    """Whether all of those filters that look at a head see the trailers of its message, too."""
    return bool(looking) and all(sees_trailers(each.filter, phase) for each in looking)


def run_trailers(steps: Sequence[Step], x: Exchange, block: bytes) -> bytes | asyncio.Task[bytes]:
    """Show these trailers to the filters. Returns what they leave of them, or a task that does.

    A filter that fails open leaves them as they were. Raises what a filter refuses with, and
    GatewayFault(FILTER_FAILED, 502) if one fails.
    """
    for position, step in enumerate(steps, 1):
        fields = Fields(block)
        step.stats.runs += 1
        try:
            result = step.call(x, fields)
            if isinstance(result, Awaitable):
                return start(_go_on(step, result, fields, steps[position:], x, block), result)
            block = _given(fields, result)
        except BaseException as error:  # nothing is awaited here: whatever it is, the filter raised it
            settle(step, error, may_fail_open=step.fail_open)
    return block


async def _go_on(
    step: Step, awaitable: Awaitable[object], fields: Fields, rest: Sequence[Step], x: Exchange, block: bytes
) -> bytes:
    try:
        block = _given(fields, await wait(step, awaitable, x))
    except Exception as error:
        settle(step, error, may_fail_open=step.fail_open)
    outcome = run_trailers(rest, x, block)
    return outcome if isinstance(outcome, bytes) else await outcome


def _given(fields: Fields, result: object) -> bytes:
    """Raises TypeError for a result that is none. What is out of service gives the fields back."""
    if result is not None and result is not fields:
        raise TypeError
    return fields.block
