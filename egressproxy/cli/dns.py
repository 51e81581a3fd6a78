"""`egressproxy dns`: where a name leads, by which servers, and which addresses would be dialled."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from egressproxy.cli.asking import AdminAddress, answer_offline, ask
from egressproxy.cli.options import (
    ConfigByOption,
    asked_admin,
    asked_admin_option,
    bind_option,
    client_options,
    client_pairs,
    config_option,
    output_option,
)
from egressproxy.cli.styled_lines import print_found, print_lines
from egressproxy.cli.suggestions import BACKENDS, GATEWAYS, POLICIES

Line = tuple[str, str, str]
_WIDTH = 12


@click.command("dns", cls=ConfigByOption)
@click.argument("name")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=443, show_default=True, help="The port, for rules with ports."
)
@click.option(
    "--gateway",
    metavar="NS/NAME",
    default="",
    shell_complete=GATEWAYS,
    help="As the forward proxy of this Gateway resolves it.",
)
@click.option(
    "--policy", metavar="NS/NAME", default="", shell_complete=POLICIES, help="Only places of this EgressPolicy."
)
@click.option(
    "--backend", metavar="NS/NAME", default="", shell_complete=BACKENDS, help="As this Backend resolves its hostname."
)
@client_options
@config_option("Look up with this configuration instead of a running process; may be given again.")
@asked_admin_option
@bind_option("As in `run`, with --config.")
@output_option
def command(
    name: str, port: int, gateway: str, policy: str, backend: str, identity: str, groups: tuple[str, ...],
    claims: tuple[str, ...], config: tuple[Path, ...],
    admin: AdminAddress | None, bind: tuple[str, ...], output: str,
) -> None:  # fmt: skip
    """Look up a name as the gateway does: what each DNS server answers and how fast, what the running process has
    cached, the names on the way (CNAME), and each address with the verdict of the address rules.

    Each forward proxy that may query the name is a place with its own servers and rules, and so is each Backend with
    this hostname. Places with equal rules are shown once. Like the gateway, `dns` never queries a name that policy
    denies.

    \b
    Examples:
      egressproxy dns api.example.com
      egressproxy dns api.example.com --backend agents/api
      egressproxy dns db.internal.example --port 5432 --config policies/ -o json

    Exit status: 0 each place may dial an address, 1 a place may dial none, 2 wrong usage.
    """
    if config and admin is not None:
        raise click.UsageError("give --config or --admin, not both")
    pairs = [("name", name), ("port", str(port)), ("gateway", gateway), ("policy", policy), ("backend", backend)]
    pairs += client_pairs(identity, groups, claims)
    found = _of_files(config, bind, pairs) if config else ask(asked_admin(admin), "/dns", pairs)
    lines = (((f"{label:<{_WIDTH}}", "bold"), (text, style)) for label, text, style in _lines(found))
    print_found(found, output, lambda: print_lines(lines, sys.stdout))
    sys.exit(0 if all(each["verdict"] != "refuse" for each in found["places"]) else 1)


def _of_files(config: tuple[Path, ...], bind: tuple[str, ...], pairs: list[tuple[str, str]]) -> dict[str, Any]:
    from egressproxy.operators.explain.name_lookup import NameQuestion, look_up

    return answer_offline(config, bind, pairs, NameQuestion.of, look_up)


def _lines(found: Mapping[str, Any]) -> Iterator[Line]:
    """Label, text and style of each line."""
    for number, place in enumerate(found["places"]):
        if number:
            yield "", "", ""
        yield from _place(found, place)


def _place(found: Mapping[str, Any], place: Mapping[str, Any]) -> Iterator[Line]:
    style = {"dial": "bold green", "refuse": "bold red"}.get(place["verdict"], "")
    yield place["verdict"], f"{found['name']} port {found['port']}", style
    for label in place["for"]:
        yield "  for", label, ""
    error = place.get("error")
    if error is not None:
        yield "  why", f"{error['status']} {error['reason']}: {error['message']}", "red"
        if error.get("detail"):
            yield "", error["detail"], ""
        if error.get("remedy"):
            yield "  to do", error["remedy"], ""
    yield "  dns", place["dns"], ""
    if "cache" in place:
        yield "  kept", _kept(place["cache"]), ""
    for each in place.get("answers", ()):
        yield "  answer", *_answer(each)
    if place.get("cnames"):
        yield "  through", ", ".join(place["cnames"]), ""
    for each in place.get("addresses", ()):
        style = "" if each["verdict"] == "dial" else "red"
        yield "  address", f"{each['verdict']:<7}{each['address']}: {each['why']}", style
        if "reverse" in each:
            yield "", f"names of {each['address']}: {each['reverse']}", style


def _kept(cache: Mapping[str, Any]) -> str:
    if cache["state"] == "unknown":
        return "nothing"
    what = cache.get("reason") or ", ".join(cache["addresses"])
    return f"{cache['state']}, for {cache['forSeconds']:g} s more: {what}"


def _answer(each: Mapping[str, Any]) -> tuple[str, str]:
    asked = f"{each['server']} {each['name']} {each['type']}, {each['milliseconds']:g} ms"
    if "failure" in each:
        return f"{asked}: {each['failure']}", "red"
    if each["result"] == "nxdomain":
        result = "the name does not exist"
    else:
        result = ", ".join(each["addresses"]) or "none"
    through = f" through {', '.join(each['cnames'])}" if each["cnames"] else ""
    bit = ", authentic" if each["authentic"] else ""
    return f"{asked}: {result}{through} (TTL {each['ttlSeconds']} s{bit})", ""
