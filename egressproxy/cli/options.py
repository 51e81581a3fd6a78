"""Options that several verbs have, each with the help of the verb."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from egressproxy.cli.asking import ADMIN, ADMIN_VARIABLE, AdminAddress
from egressproxy.cli.option_values import address_and_port, address_or_network

#: What `click.option` returns.
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

output_option: Decorator = click.option(
    "-o", "--output", type=click.Choice(("text", "json")), default="text", show_default=True
)


def together(*options: Decorator) -> Decorator:
    """These options as one decorator; `--help` shows them in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


#: Who the client is: the command gets `identity`, `groups` and `claims`, as /explain and /dns take them.
client_options: Decorator = together(
    click.option(
        "--as", "identity", metavar="NS/SA", default="-/-", help="The namespace and service account of the client."
    ),
    click.option("--group", "groups", multiple=True, metavar="NAME", help="A group of the client; may be given again."),
    click.option(
        "--claim", "claims", multiple=True, metavar="NAME=VALUE",
        help="A claim of the client's token; may be given again.",
    ),
)  # fmt: skip


def client_pairs(identity: str, groups: tuple[str, ...], claims: tuple[str, ...]) -> list[tuple[str, str]]:
    """What `client_options` say, as parameters of /explain and /dns."""
    return [("as", identity), *(("group", each) for each in groups), *(("claim", each) for each in claims)]


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


def experimental_option(help_text: str = "As in `run`.") -> Decorator:
    """`--experimental`: what provisional GEPs of Gateway API define is served."""
    return click.option("--experimental", is_flag=True, help=help_text)


def admin_option(
    help_text: str, default: str | None = f"{ADMIN[0]}:{ADMIN[1]}", *, may_be_off: bool = False
) -> Decorator:
    """`--admin HOST:PORT`: the address and port to listen on where it `may_be_off`, None for `off`.

    Elsewhere it is where to ask, with `--api-token-file FILE` beside it: the command gets an AdminAddress, or None
    where there is no default (see `asked_admin`). `off` raises click.UsageError there: who is asked must not be another
    process than was meant. $EGRESSPROXY_ADMIN is used in place of a default.
    """
    option = click.option(
        "--admin", type=address_and_port, default=default, show_default=True, metavar="HOST:PORT", help=help_text,
        envvar=ADMIN_VARIABLE if default is not None else None, show_envvar=True,
        callback=None if may_be_off else _demanded,
    )  # fmt: skip
    return option if may_be_off else together(_token_option, option)


def _read_token(ctx: click.Context, _param: click.Parameter, file: Path | None) -> None:
    if file is None:
        return
    try:
        ctx.meta[_TOKEN] = file.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--api-token-file {file} cannot be read ({type(error).__name__})") from None


#: Where the context of a command has the token.
_TOKEN: Final = "egressproxy.api_token"  # noqa: S105 (no password)
#: Read before --admin, which gives it to the command.
_token_option: Decorator = click.option(
    "--api-token-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    is_eager=True, expose_value=False, callback=_read_token,
    help="The token of `run --api-token-file`, if the process has one.",
)  # fmt: skip


def _demanded(ctx: click.Context, param: click.Parameter, given: tuple[str, int] | None) -> AdminAddress | None:
    source = ctx.get_parameter_source(param.name or "")
    if given is None and source is not ParameterSource.DEFAULT:
        raise _is_off(f"{ADMIN_VARIABLE}=off" if source is ParameterSource.ENVIRONMENT else "--admin off")
    return given and AdminAddress(*given, ctx.meta.get(_TOKEN, ""))


def _is_off(option: str) -> click.UsageError:
    return click.UsageError(
        f"{option} leaves no address to ask: start the gateway with --admin HOST:PORT, and name the same address here"
    )


def asked_admin(admin: AdminAddress | None, ctx: click.Context | None = None) -> AdminAddress:
    """The address to ask: that of --admin, else of $EGRESSPROXY_ADMIN, else ADMIN. Raises click.UsageError."""
    if admin is not None:
        return admin
    place: tuple[str, int] | None = ADMIN
    if named := os.environ.get(ADMIN_VARIABLE, ""):
        try:
            place = address_and_port(named)
        except click.BadParameter as error:
            raise click.UsageError(f"${ADMIN_VARIABLE}: {error.message}") from None
    if place is None:
        raise _is_off(f"{ADMIN_VARIABLE}=off")
    return AdminAddress(*place, (ctx or click.get_current_context()).meta.get(_TOKEN, ""))


#: For verbs that ask a process, or change something in it.
asking_options: Decorator = together(output_option, admin_option("The admin address of the process."))
#: What `asked_admin` takes where --admin is not given, for help texts.
ADMIN_DEFAULT = f"${ADMIN_VARIABLE}, or {ADMIN[0]}:{ADMIN[1]}"
#: For verbs that ask a process, or with --config what one would answer: `asked_admin` gives the address.
asked_admin_option: Decorator = admin_option(
    f"Ask the process with this admin address. Default without --config: {ADMIN_DEFAULT}.", default=None
)


class ConfigByOption(click.Command):
    """A verb whose arguments are not paths. Further arguments raise click.UsageError with the remedy."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's; raises click.UsageError for further arguments."""
        ctx.allow_extra_args = True
        before = ["egressproxy", ctx.info_name or "", *args]
        left = super().parse_args(ctx, args)
        if left and not ctx.resilient_parsing:
            # A path may be in the place of an argument, which is then left over.
            taken = [
                str(ctx.params[each.name]) for each in self.params if isinstance(each, click.Argument) and each.name
            ]
            raise click.UsageError(_unexpected(before, left, [*taken, *left]), ctx)
        return left


def _unexpected(written: list[str], left: list[str], words: list[str]) -> str:
    paths = [word for word in words if Path(word).exists()]
    meant = paths or left
    rest = [word for word in written if word not in meant]
    command = shlex.join([*rest, *(part for path in meant for part in ("--config", path))])
    named = shlex.join(meant)
    if paths:
        return f"{named} is given without --config: write {command}"
    message = f"{named}: unexpected argument, and no such file; give a configuration with --config PATH"
    return f"{message}, and a command behind --" if written[1] == "run" else message
