"""`egressproxy serve-filters`: reads the options, and passes them to `app.run`."""

from __future__ import annotations

import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import click

from egressproxy.cli.option_values import address_and_port
from egressproxy.cli.options import admin_option, config_option
from egressproxy.cli.secrets import secret_options
from egressproxy.cli.serving import begin
from egressproxy.cli.serving_options import serving_options
from egressproxy.identity.peers import TRUST_DOMAIN
from egressproxy.model.secret import SecretSource
from egressproxy.run_options import FilterListener, RunOptions

#: sockaddr_un has room for 108 bytes, with a NUL behind them (unix(7)).
_MAX_PATH = 107
#: Nothing is bound there, but Gateways without addresses have different ones, so that none is in another's way.
_NOWHERE = ("127.77.0.0/16",)

_file = click.Path(exists=True, dir_okay=False, path_type=Path)


def _listen(_ctx: click.Context, _param: click.Parameter, value: str) -> FilterListener:
    if value.startswith("unix:"):
        path = value.removeprefix("unix:")
        if not path or len(path.encode()) > _MAX_PATH:
            raise click.BadParameter(f"the path of a Unix socket has 1 to {_MAX_PATH} bytes")
        return FilterListener(path=path)
    if value == "off" or ":" not in value:
        raise click.BadParameter(
            f"{value!r} is neither unix:PATH nor HOST:PORT; give one such as unix:/run/egressproxy/filters.sock or"
            " 127.0.0.1:9000"
        )
    found = address_and_port(value)
    assert found is not None
    return FilterListener(*found)


def _mode(_ctx: click.Context, _param: click.Parameter, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 4 and set(value) <= set("01234567")):
        raise click.BadParameter(f"{value!r} are no permissions; give them in octal, such as 0660")
    return int(value, 8) & 0o777


def _domains(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not TRUST_DOMAIN.fullmatch(value):
            raise click.BadParameter(f"{value!r} is no trust domain; give one such as cluster.local")
    return values


@click.command("serve-filters")
@config_option("A manifest, or a folder of *.yaml, *.yml and *.json; may be given again. Watched for changes.")
@click.option(
    "--listen", required=True, metavar="unix:PATH|HOST:PORT", callback=_listen,
    help="The address for Envoy. Every client of this address can learn the credentials that filters add: prefer a"
    " Unix socket; an address that is not loopback needs the --tls options.",
)  # fmt: skip
@click.option(
    "--socket-mode", default="0600", show_default=True, metavar="OCTAL", callback=_mode,
    help="The permissions of the Unix socket.",
)  # fmt: skip
@click.option("--tls-cert", type=_file, metavar="FILE", help="The certificate chain of the server, PEM.")
@click.option("--tls-key", type=_file, metavar="FILE", help="The key of --tls-cert, PEM.")
@click.option(
    "--tls-client-ca", type=_file, metavar="FILE",
    help="The CAs of Envoy's client certificates, PEM: other connections are refused.",
)  # fmt: skip
@click.option(
    "--trust-domain", "trust_domains", multiple=True, metavar="NAME", callback=_domains,
    help="Accept SPIFFE ids of clients in this trust domain, which Envoy sends as the attribute"
    " connection.uri_san_peer_certificate; may be given again. The first domain is the gateway's own; a namespace of"
    " another is NAMESPACE@DOMAIN.",
)  # fmt: skip
@admin_option("Health, metrics and the configuration in service. `off`: none.", may_be_off=True)
@serving_options
@secret_options
def command(
    sources: tuple[SecretSource, ...], listen: FilterListener, socket_mode: int, tls_cert: Path | None,
    tls_key: Path | None, tls_client_ca: Path | None, trust_domains: tuple[str, ...], **given: Any,
) -> None:  # fmt: skip
    """Serve the filters of a configuration to Envoy, as its external processor (ext_proc), until SIGTERM or SIGINT.

    Gateways, routes, policies and Backends are written as for `egressproxy run`, but no listener is bound: Envoy sends
    the requests, and reaches the backends. See docs/serve-filters.md for Envoy's side.

    \b
    Examples:
      egressproxy serve-filters --config policies/ --listen unix:/run/egressproxy/filters.sock
      egressproxy serve-filters --config policies/ --listen 127.0.0.1:9000 --admin 127.0.0.1:15900

    Exit status: 0 after a drain, 1 if the configuration or the socket fails at the start, 2 for wrong usage.
    """
    from dataclasses import replace

    files = (tls_cert, tls_key, tls_client_ca)
    if any(files) and not all(files):
        raise click.UsageError("TLS needs all of --tls-cert, --tls-key and --tls-client-ca")
    if any(files) and listen.path:
        raise click.UsageError("--tls-cert is for HOST:PORT: the permissions of a Unix socket say who may connect")
    if listen.host and not any(files) and not ip_address(listen.host).is_loopback:
        raise click.UsageError(
            f"--listen {listen} would tell the network the credentials that filters add: give --tls-cert, --tls-key and"
            " --tls-client-ca, or listen on a Unix socket or on loopback"
        )
    if not given["config"]:
        raise click.UsageError("give --config: there are no filters without a configuration")
    filters = replace(
        listen, mode=socket_mode, tls_certificate=tls_cert, tls_key=tls_key, tls_client_ca=tls_client_ca,
        trust_domains=trust_domains,
    )  # fmt: skip
    options = RunOptions(secrets=sources, filters=filters, bind=_NOWHERE, **given)
    sys.exit(begin(options))
