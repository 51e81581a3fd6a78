"""`egressproxy env`: what client programs need to go through the gateway, for a shell to take."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from egressproxy.cli.client_options import client_options, login_of
from egressproxy.cli.client_settings import ClientSettings, Proxy


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


#: One line for one variable.
_SHELLS: Final[dict[str, Callable[[str, str], str]]] = {
    "sh": _sh, "fish": _fish, "powershell": _powershell, "docker": _plain, "github": _plain,
}  # fmt: skip


def _proxy(_ctx: click.Context, _param: click.Parameter, value: str) -> Proxy | None:
    try:
        return None if value == "off" else Proxy.of(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("env")
@click.option(
    "--shell", type=click.Choice(tuple(_SHELLS)), default="sh", show_default=True,
    help="The reader: sh for bash and zsh, too; docker for --env-file; github for $GITHUB_ENV.",
)  # fmt: skip
@click.option(
    "--proxy", metavar="URL", default="http://127.0.0.1:3128", show_default=True, callback=_proxy,
    help="The forward-proxy listener, as clients reach it. `off`: only base URLs.",
)  # fmt: skip
@client_options
@click.option(
    "--bundle", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write the roots of this system and --ca into this file, and beside it FILE.p12 for Java; both are replaced.",
)  # fmt: skip
def command(
    shell: str, proxy: Proxy | None, no_proxy: tuple[str, ...], token: str, user: str, password: str,
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
      eval "$(egressproxy env --ca egressproxy-ca --bundle ~/.egress-bundle.pem)"
      eval "$(egressproxy env --proxy off --base-url openai=http://127.0.0.1:8080/openai/v1)"

    Exit status: 0 done, 1 the bundle cannot be made, 2 wrong usage.
    """
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


def _write(ca: Path, bundle: Path, java_store: Path) -> None:
    from egressproxy.cli.trust_bundle import TrustProblem, read_ca, write_trust

    try:
        write_trust(read_ca(ca), bundle, java_store)
    except TrustProblem as problem:
        raise click.ClickException(str(problem)) from None
