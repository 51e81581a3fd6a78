"""Options that several verbs have, each with the help of the verb."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from egressproxy.cli.addresses import address_and_port, address_or_network
from egressproxy.cli.asking import ADMIN

__all__ = ["admin_option", "api_token_option", "bind_option", "config_option", "output_option"]

#: What `click.option` returns.
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

output_option: Decorator = click.option(
    "-o", "--output", type=click.Choice(("text", "json")), default="text", show_default=True
)

api_token_option: Decorator = click.option(
    "--api-token-file", "token", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="The token of `run --api-token-file`, where the process has one.",
)  # fmt: skip


def config_option(help_text: str) -> Decorator:
    """`--config PATH`, which may be repeated: the command gets a tuple of existing paths."""
    path = click.Path(exists=True, path_type=Path)
    return click.option("-c", "--config", "config", multiple=True, type=path, metavar="PATH", help=help_text)


def bind_option(help_text: str, default: tuple[str, ...] | None = ("127.0.0.1",)) -> Decorator:
    """`--bind ADDR`, which may be repeated: the command gets a tuple of addresses and networks, each once."""
    return click.option(
        "--bind", "bind", multiple=True, type=address_or_network, default=default, show_default=default is not None,
        metavar="ADDR", callback=lambda _ctx, _param, given: tuple(dict.fromkeys(given)), help=help_text,
    )  # fmt: skip


def admin_option(help_text: str, default: str | None = f"{ADMIN[0]}:{ADMIN[1]}") -> Decorator:
    """`--admin HOST:PORT`: the command gets an address and port, or None for `off` or where there is no default."""
    return click.option(
        "--admin", type=address_and_port, default=default, show_default=True, metavar="HOST:PORT", help=help_text
    )
