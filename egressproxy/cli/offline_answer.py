"""What a process with a configuration in files would answer, where none is running."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from egressproxy.cli.problems import compiled_or_exit
from egressproxy.model.secret import ConfigSource

if TYPE_CHECKING:  # it is imported when it is needed: with the gateway
    from egressproxy.gateway.snapshot import Snapshot

Q = TypeVar("Q")
Pairs = list[tuple[str, str]]


def answer_offline(
    config: Sequence[ConfigSource], bind: tuple[str, ...], pairs: Pairs, read: Callable[[Pairs], Q],
    answer: Callable[[Snapshot, Q], Awaitable[dict[str, Any]]],
) -> dict[str, Any]:  # fmt: skip
    """What `answer` says of this configuration to the question that `read` finds in these parameters.

    Exits with 2 if it cannot be served. Raises click.UsageError for a question that is none.
    """
    import asyncio

    from egressproxy.gateway.explain.hypothetical_request import HypotheticalRequestError
    from egressproxy.gateway.explain.offline import offline

    async def answered() -> dict[str, Any]:
        return await answer(offline(spec), question)

    try:
        question = read(pairs)
        spec = compiled_or_exit(config, bind)
        return asyncio.run(answered())
    except HypotheticalRequestError as error:
        raise click.UsageError(str(error)) from None
    except (ValueError, OSError) as error:  # a filter or a certificate that cannot be built
        click.echo(f"egressproxy: this configuration cannot be served: {error}", err=True)
        sys.exit(2)
