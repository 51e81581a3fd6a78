"""What the shell offers for a value (`egressproxy completion`): names of objects that a running gateway has. A gateway
that does not answer at once, or not at all, is offered nothing for, and nothing is said.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import click

from egressproxy.cli.asking import is_of_gateway
from egressproxy.cli.options import asked_admin

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: Whoever presses a key waits no longer.
TIMEOUT_S: Final = 2.0
TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"

#: What click calls for the values of an option or argument.
Suggest = Callable[[click.Context, click.Parameter, str], "list[CompletionItem[str]]"]


def ask_briefly(ctx: click.Context, path: str, accept: str = "application/json") -> dict[str, Any]:
    """The JSON body of one response of the gateway at --admin, a Status where it refuses; {} from another program, and
    without a response.
    """
    from http.client import HTTPException

    try:
        with closing(asked_admin(ctx.params.get("admin"), ctx).connect(path, accept, TIMEOUT_S)) as connection:
            answer = connection.getresponse()
            found = json.loads(answer.read()) if is_of_gateway(answer) else {}
            return found if isinstance(found, dict) else {}
    except (click.UsageError, OSError, HTTPException, ValueError):
        return {}


def offered(names: Iterable[str | tuple[str, str]], incomplete: str) -> list[CompletionItem[str]]:
    """Those that begin so, each once; the second text of a pair says what it is. A shell takes them line by line and
    word by word: what clients have named with blanks or control characters is left out.
    """
    from click.shell_completion import CompletionItem

    pairs = dict(name if isinstance(name, tuple) else (name, "") for name in names)
    return [
        CompletionItem(name, help=text if text.isprintable() and text else None)
        for name, text in pairs.items()
        if name.startswith(incomplete) and name.isprintable() and " " not in name
    ]


def rows(ctx: click.Context, path: str) -> list[dict[str, Any]]:
    """The metadata of the objects that this path of the API lists."""
    return [row["object"]["metadata"] for row in ask_briefly(ctx, path, TABLE).get("rows", ())]


def objects(*resources: str) -> Suggest:
    """Offers NS/NAME of all objects of these resources, such as `gateway.networking.k8s.io/v1/gateways`."""

    def suggest(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        found = [each for resource in resources for each in rows(ctx, f"/apis/{resource}")]
        return offered((f"{each.get('namespace', '')}/{each['name']}" for each in found), incomplete)

    return suggest


GATEWAYS: Final = objects("gateway.networking.k8s.io/v1/gateways")
ROUTES: Final = objects("gateway.networking.k8s.io/v1/httproutes", "gateway.networking.k8s.io/v1/grpcroutes")
POLICIES: Final = objects("egressproxy.io/v1alpha1/egresspolicies")
BACKENDS: Final = objects("egressproxy.io/v1alpha1/backends")


def listed(path: str, member: str, name: str, *described: str) -> Suggest:
    """Offers the `name` of each entry that a path of the admin address has in `member`, with its texts `described`."""

    def suggest(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        entries = ask_briefly(ctx, path).get(member, ())
        return offered(((each[name], " ".join(str(each[one]) for one in described)) for each in entries), incomplete)

    return suggest
