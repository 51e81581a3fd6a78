"""`egressproxy env`: what client programs need to go through the gateway, for a shell to take."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource

from egressproxy.cli.asking import AdminAddress
from egressproxy.cli.client_options import client_options, login_of
from egressproxy.cli.client_settings import ClientSettings, Proxy, other_java_options, set_before
from egressproxy.cli.options import ADMIN_DEFAULT, admin_option


def _sh(name: str, value: str) -> str:
    quoted = value.replace("'", "'\\''")
    return f"export {name}='{quoted}'"


def _fish(name: str, value: str) -> str:
    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"set -gx {name} '{quoted}'"


def _powershell(name: str, value: str) -> str:
    quoted = value.replace("'", "''")
    return f"$Env:{name} = '{quoted}'"


def _plain(name: str, value: str) -> str:
    return f"{name}={value}"


#: What removes a variable; no line of a file can.
_UNSET: Final[dict[str, str]] = {
    "sh": "unset {}", "fish": "set -e {}", "powershell": "Remove-Item Env:{} -ErrorAction SilentlyContinue",
}  # fmt: skip
#: Where `run` listens without a configuration, and where most have their listener.
_USUAL: Final = "http://127.0.0.1:3128"
#: One line for one variable.
_SHELLS: Final[dict[str, Callable[[str, str], str]]] = {
    "sh": _sh, "fish": _fish, "powershell": _powershell, "docker": _plain, "github": _plain,
}  # fmt: skip


def _proxy(ctx: click.Context, _param: click.Parameter, value: str | None) -> Proxy | None:
    """None for `off`, and where nothing is said. Raises click.BadParameter."""
    try:
        return None if value in ("off", None) else Proxy.of(str(value))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("env")
@click.option(
    "--shell", type=click.Choice(tuple(_SHELLS)), default="sh", show_default=True,
    help="The reader: sh for bash and zsh, too; docker for --env-file; github for $GITHUB_ENV.",
)  # fmt: skip
@click.option(
    "--proxy", metavar="URL", default=None, callback=_proxy,
    help=f"The forward-proxy listener, as clients reach it. `off`: only base URLs. Default: that of the gateway at"
    f" --admin, or {_USUAL} if none answers.",
)  # fmt: skip
@admin_option(f"The gateway that is asked for its listener. Default: {ADMIN_DEFAULT}.", default=None)
@click.option(
    "--listener", metavar="NAME", default="",
    help="Which forward-proxy listener of that gateway, as LISTENER, GATEWAY/LISTENER or NAMESPACE/GATEWAY/LISTENER.",
)  # fmt: skip
@click.option("--unset", is_flag=True, help="Print what removes the variables that an earlier `env` has set.")
@client_options
@click.option(
    "--bundle", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write the roots of this system and --ca into this file, and beside it FILE.p12 for Java; both are replaced.",
)  # fmt: skip
@click.pass_context
def command(
    ctx: click.Context, shell: str, proxy: Proxy | None, admin: AdminAddress | None, listener: str, *, unset: bool,
    no_proxy: tuple[str, ...], token: str, user: str, password: str,
    base_urls: dict[str, str], ca: Path | None, bundle: Path | None,
) -> None:  # fmt: skip
    """Print the variables that lead client programs to the gateway, and make them trust the CA for interception.

    Only the file of --bundle is written. Programs may ignore the variables: to enforce the gateway, block every other
    way out in the network.

    \b
    Examples:
      eval "$(egressproxy env)"
      egressproxy env --shell fish | source
      egressproxy env --shell powershell | Out-String | Invoke-Expression
      egressproxy env --shell github --proxy http://egress:3128 >> "$GITHUB_ENV"
      eval "$(egressproxy env --user alice --password-file ~/.egress-password)"
      egressproxy env --shell docker --proxy http://172.17.0.1:3128 > egress.env
      eval "$(egressproxy env --unset)"
      eval "$(egressproxy env --ca egressproxy-ca --bundle ~/.egress-bundle.pem)"
      eval "$(egressproxy env --proxy off --base-url openai=http://127.0.0.1:8080/openai/v1)"

    Exit status: 0 done, 1 the bundle cannot be made, 2 wrong usage.
    """
    if unset:
        _print_unset(shell)
        return
    if proxy is None and ctx.get_parameter_source("proxy") is ParameterSource.DEFAULT:
        proxy = _of_gateway(ctx, listener) or Proxy.of(_USUAL)
    if (ca is None) != (bundle is None):
        raise click.UsageError(
            "--ca and --bundle go together: most clients take one file in place of the roots of their system"
        )
    if proxy is None and not base_urls:
        raise click.UsageError("with --proxy off clients have no gateway: give --base-url, too")
    login = login_of(token, user, password)
    if login.password and proxy is not None:
        proxy = proxy._replace(login=login)
    java_store = None
    if ca is not None and bundle is not None:
        bundle = bundle.absolute()
        java_store = bundle.with_name(f"{bundle.name}.p12")
        _write(ca, bundle, java_store)
    settings = ClientSettings(proxy, no_proxy, bundle, java_store, base_urls)
    kept = os.environ.get("JAVA_TOOL_OPTIONS", "") if shell in ("sh", "fish", "powershell") else ""
    for name, value in settings.variables(kept).items():
        if "\n" in value or "\r" in value:
            raise click.ClickException(f"the value of {name} has a line break, which no line of a file can hold")
        click.echo(_SHELLS[shell](name, value))


def _of_gateway(ctx: click.Context, listener: str) -> Proxy | None:
    """The listener of the gateway at --admin; None if none answers. Raises click.UsageError, also where it refuses."""
    from egressproxy.cli.suggestions import ask_briefly

    found = ask_briefly(ctx, "/model")
    if found.get("kind") == "Status":
        raise click.UsageError(f"the gateway at --admin does not tell its listener: {found['message']}")
    if "model" not in found:  # nobody, or another program
        if listener:
            raise click.UsageError("--listener names one of a gateway that runs, and none answers at --admin: --proxy")
        return None
    from egressproxy.cli.wrapped_command import NotUsable, chosen_listener, proxy_of
    from egressproxy.processes.forward_listeners import ForwardListener

    there = [
        ForwardListener(
            key.partition(" ")[2], address, int(values["port"]), any(each.split(".")[0] == "tls" for each in values), ""
        )
        for key, values in found["model"].items()
        if key.startswith("Listener ")
        and ", for subjects of " not in key
        and values.get("protocol") == "egressproxy.io/forward-proxy"
        for address in [each for each in values["addresses"] if "://" not in each][:1]
    ]
    try:
        chosen = chosen_listener(there, listener)
    except NotUsable as problem:
        raise click.UsageError(str(problem)) from None
    if chosen is None:
        raise click.UsageError("the gateway at --admin has no forward-proxy listener: --proxy off with --base-url")
    return proxy_of(chosen)


def _print_unset(shell: str) -> None:
    form = _UNSET.get(shell)
    if form is None:
        raise click.UsageError(f"--unset is for shells ({', '.join(_UNSET)}): in a file, leave the lines out")
    for name in set_before(os.environ):
        click.echo(form.format(name))
    java = os.environ.get("JAVA_TOOL_OPTIONS", "")
    kept = other_java_options(java)
    if kept != " ".join(java.split()):
        click.echo(_SHELLS[shell]("JAVA_TOOL_OPTIONS", kept) if kept else form.format("JAVA_TOOL_OPTIONS"))


def _write(ca: Path, bundle: Path, java_store: Path) -> None:
    from egressproxy.cli.trust_bundle import TrustProblem, read_ca, write_trust

    try:
        write_trust(read_ca(ca), bundle, java_store)
    except TrustProblem as problem:
        raise click.ClickException(str(problem)) from None
