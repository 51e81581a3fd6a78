"""`egressproxy explain`: what would happen to a request, and why; nothing is sent to a backend."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, Any

import click

from egressproxy.cli.asking import AdminAddress, answer_offline, ask
from egressproxy.cli.explanation import show
from egressproxy.cli.options import (
    ConfigByOption,
    asked_admin,
    asked_admin_option,
    bind_option,
    client_options,
    client_pairs,
    config_option,
    experimental_option,
    output_option,
)
from egressproxy.cli.secrets import secret_options
from egressproxy.cli.styled_lines import print_found
from egressproxy.cli.suggestions import GATEWAYS, listed
from egressproxy.model.secret import ConfigSource, SecretSource

METHODS = frozenset(("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"))


class _MethodFirst(ConfigByOption):
    """Says what to write if METHOD or URL is missing; usually it is the method. With --request or --log neither is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        has_request = any(each.partition("=")[0] in ("--request", "--log") for each in args)
        for param in self.params:
            param.required = isinstance(param, click.Argument) and not has_request
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter:
            given = ctx.params.get("method")
            if not given or given.upper() in METHODS:
                raise
            meant = f"GET {given}" if "://" in given or given.startswith("/") else f"CONNECT {given}"
            if meant.startswith("CONNECT") and ":" not in given:
                meant += ":443"
            message = f"the METHOD is missing before the URL: write egressproxy explain {meant}"
            raise click.UsageError(message, ctx) from None


@click.command("explain", cls=_MethodFirst)
@click.argument(
    "method",
    shell_complete=lambda _ctx, _param, begun: sorted(each for each in METHODS if each.startswith(begun.upper())),
)
@click.argument("url")
@client_options
@config_option("Explain with this configuration instead of a running process; may be given again.")
@asked_admin_option
@click.option("-H", "--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="A header; may be given again.")
@click.option(
    "--gateway",
    metavar="NS/NAME",
    default="",
    shell_complete=GATEWAYS,
    help="The Gateway, if several could take the request.",
)
@click.option("--listener", metavar="NAME", default="", help="The listener, if several could take the request.")
@click.option("--key", metavar="ENTRY", default="", help="The client with this API key, by the entry of its Secret.")
@click.option(
    "--request",
    "request_id",
    metavar="ID",
    default="",
    shell_complete=listed("/decisions", "decisions", "request_id", "method", "authority"),
    help="A request that has ended, by its id, in place of METHOD and URL: what was decided, and what would be now.",
)
@click.option(
    "--log", type=click.File(encoding="utf-8", errors="replace"), metavar="FILE",
    help="The access log that has the request, - for standard input; without --request its last line. Default: the"
    " process's memory.",
)  # fmt: skip
@click.option("--no-dns", is_flag=True, help="Do not resolve names: addresses are not checked.")
@bind_option("As in `run`, with --config.")
@experimental_option("As in `run`, with --config.")
@output_option
@secret_options
def command(
    method: str | None, url: str | None, identity: str, groups: tuple[str, ...], claims: tuple[str, ...],
    config: tuple[Path, ...], admin: AdminAddress | None,
    headers: tuple[str, ...], gateway: str, listener: str, key: str, request_id: str, log: IO[str] | None,
    no_dns: bool, bind: tuple[str, ...], experimental: bool, output: str, sources: tuple[SecretSource, ...],
) -> None:  # fmt: skip
    """Explain a request: the listener, the rule that wins and the runner-up, the decision of the policies, the
    backends with a verdict on each address, TLS, filters in their order, credentials by name, limits and timeouts; or
    the denial, and what would allow the request.

    The running process decides, or with --config the same code with these manifests. Names are resolved (not with
    --no-dns). Nothing is sent to a backend, and no filter runs.

    \b
    Examples:
      egressproxy explain GET https://api.example.com/v1/models
      egressproxy explain CONNECT api.example.com:443 --config policies/
      egressproxy explain POST http://localhost:8080/v1/chat -H 'X-Team: red' --listener http
      egressproxy explain GET http://a.example/ --as agents/crawler -o json | jq .route
      egressproxy explain --request 5e1f0b6c-2a
      tail -1 access.jsonl | egressproxy explain --log - --config policies/

    Exit status: 0 it would be allowed, 1 it would be denied or could not be served, 2 wrong usage.
    """
    if sources and not config:
        raise click.UsageError("Secrets need --config: a running process has its own")
    if config and admin is not None:
        raise click.UsageError("give --config or --admin, not both")
    if request_id or log is not None:
        if method is not None or identity != "-/-" or groups or claims or headers or gateway or listener or key:
            raise click.UsageError("--request and --log name the whole request: give no other of it")
        from egressproxy.cli.request_explanation import explain_then_and_now, pairs_of, recorded

        record = recorded(request_id, log, lambda: asked_admin(admin))
        pairs = [*pairs_of(record), ("dns", "0" if no_dns else "1")]
        now = _found((*config, *sources), bind, pairs, experimental, admin)
        explain_then_and_now(record, now, output)
        sys.exit(0 if now["verdict"] == "allowed" else 1)
    assert method is not None
    assert url is not None
    if method.upper() in METHODS:  # methods are case-sensitive, but nobody means another method here
        method = method.upper()
    pairs = [("method", method), ("url", url), ("gateway", gateway), ("listener", listener)]
    pairs += client_pairs(identity, groups, claims)
    pairs += [("header", header) for header in headers] + [("dns", "0" if no_dns else "1")]
    pairs += [("key", key)] if key else []
    found = _found((*config, *sources), bind, pairs, experimental, admin)
    if found["approvals"] and not config:
        at = {(each["from"], each["filter"]) for each in found["approvals"]}
        waiting = ask(asked_admin(admin), "/holds")["holds"]
        found["waiting"] = [each for each in waiting if (each["from"], each["filter"]) in at]
    print_found(found, output, lambda: show(found, sys.stdout))
    sys.exit(0 if found["verdict"] == "allowed" else 1)


def _found(
    config: tuple[ConfigSource, ...], bind: tuple[str, ...], pairs: list[tuple[str, str]], experimental: bool,
    admin: AdminAddress | None,
) -> dict[str, Any]:  # fmt: skip
    """The explanation by this configuration, or without one by the process at `admin`."""
    if not config:
        return ask(asked_admin(admin), "/explain", pairs)
    from egressproxy.operators.explain.explain import explain
    from egressproxy.operators.explain.hypothetical_request import HypotheticalRequest

    return answer_offline(config, bind, pairs, HypotheticalRequest.of, explain, experimental=experimental)
