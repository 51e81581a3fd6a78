"""`egressproxy get`: the objects in service with their status, without kubectl."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from egressproxy.cli.asking import AdminAddress, ask, lines
from egressproxy.cli.options import admin_option
from egressproxy.cli.styled_lines import printable
from egressproxy.cli.suggestions import TABLE, ask_briefly, offered, rows
from egressproxy.model.near_names import did_you_mean

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_OUR_GROUP = "egressproxy.io"
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@dataclass(frozen=True, slots=True)
class ListedKind:
    """A kind that the API serves; `names` are all by which it is asked for, in lower case."""

    group: str
    version: str
    plural: str
    kind: str
    is_namespaced: bool
    names: frozenset[str]

    @property
    def resource(self) -> str:
        """`plural.group`; the plural alone for the core group."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str, name: str = "") -> str:
        """The path of the API; `namespace` "": all namespaces, `name` "": the list."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if namespace and self.is_namespaced else ""
        return f"{root}{scope}/{self.plural}" + (f"/{name}" if name else "")


def _suggest_kinds(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Plurals, with the group where several groups have one and it is not ours."""
    before, comma, begun = incomplete.rpartition(",")
    known = _known(ctx)
    ours = {kind.plural for kind in known if kind.group == _OUR_GROUP}
    names = [kind.resource if kind.plural in ours and kind.group != _OUR_GROUP else kind.plural for kind in known]
    return offered((before + comma + name for name in sorted(names) if name.startswith(begun)), incomplete)


def _suggest_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    found = _listed(ctx, ctx.params.get("kind") or "", ctx.params.get("namespace") or "")
    return offered((each["name"] for each in found), incomplete)


def _suggest_namespaces(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Those that have anything; what else stands on the line is not known here, since the option has no value yet."""
    found = _listed(ctx, "gateways,httproutes,egresspolicies", "")
    return offered((each["namespace"] for each in found), incomplete)


def _known(ctx: click.Context) -> list[ListedKind]:
    return list(_kinds(lambda root: {"items": (), **ask_briefly(ctx, root, _DISCOVERY)}))


def _listed(ctx: click.Context, kinds: str, namespace: str) -> list[dict[str, Any]]:
    """The metadata of the objects of these kinds; none where one is unknown."""
    try:
        chosen = _chosen(kinds, _known(ctx))
    except click.BadParameter:
        return []
    return [each for kind in chosen for each in rows(ctx, kind.path(namespace))]


@click.command("get")
@click.argument("kind", shell_complete=_suggest_kinds)
@click.argument("name", required=False, default="", shell_complete=_suggest_names)
@click.option(
    "-n", "--namespace", default="default", show_default=True, metavar="NS",
    shell_complete=_suggest_namespaces, help="The namespace.",
)  # fmt: skip
@click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces.")
@click.option("-l", "--selector", default="", metavar="LABELS", help="Only objects with these labels: team=red,!old.")
@click.option("-o", "--output", type=click.Choice(("wide", "yaml", "json", "name")), help="Instead of a short table.")
@click.option("-w", "--watch", is_flag=True, help="Keep running, and show changes.")
@admin_option("The admin address of the process.")
def command(
    kind: str, name: str, namespace: str, all_namespaces: bool, selector: str, output: str | None, watch: bool,
    admin: AdminAddress,
) -> None:  # fmt: skip
    """Show the objects of a running gateway. KIND is a kind, its plural or a short name: Gateway, gateways, gw.
    Separate several with commas. Add the group if several groups have the kind: backends.gateway.networking.k8s.io;
    without a group it means the kind of egressproxy.io.

    The data of Secrets is never shown.

    \b
    Examples:
      egressproxy get gateways -A
      egressproxy get httproutes -n agents -o wide
      egressproxy get egresspolicy outbound -n agents -o yaml
      egressproxy get gw,httproutes -A
      egressproxy get httproutes -A -w

    Exit status: 0 shown, 1 there is no such object, 2 wrong usage or no response.
    """
    if name and all_namespaces:
        raise click.UsageError("give a name or --all-namespaces, not both: -n gives the namespace of one object")
    kinds = _chosen(kind, list(_kinds(lambda root: ask(admin, root, accept=_DISCOVERY))))
    if name and len(kinds) > 1:
        raise click.UsageError("a name needs exactly one kind")
    if watch and len(kinds) > 1:
        raise click.UsageError("--watch needs exactly one kind")
    pairs = [("labelSelector", selector)] if selector else []
    if name:
        pairs.append(("fieldSelector", f"metadata.name={name}"))
    query = _Query(admin, kinds, "" if all_namespaces else namespace, name, pairs, output)
    if watch:
        query.watch()
    elif output in ("yaml", "json"):
        query.show_objects()
    else:
        query.show_tables()


def _kinds(ask_root: Callable[[str], Any]) -> Iterator[ListedKind]:
    """The kinds that the API serves, each in its preferred version; `ask_root` gets what discovery says of a root."""
    seen = set()
    for root in ("/api", "/apis"):
        for group in ask_root(root)["items"]:
            of = group["metadata"].get("name", "")
            for version in group["versions"]:
                for found in version["resources"]:
                    if (of, found["resource"]) in seen:
                        continue
                    seen.add((of, found["resource"]))
                    kind = found["responseKind"]["kind"]
                    names = {found["resource"], found["singularResource"], kind.lower(), *found.get("shortNames", ())}
                    scope = found["scope"] == "Namespaced"
                    yield ListedKind(of, version["version"], found["resource"], kind, scope, frozenset(names))


def _chosen(asked: str, kinds: Sequence[ListedKind]) -> list[ListedKind]:
    chosen = []
    for each in asked.split(","):
        kind_name, _, group = each.strip().lower().partition(".")
        found = [kind for kind in kinds if kind_name in kind.names and group in ("", kind.group)]
        if not found:
            known = sorted({name for kind in kinds for name in kind.names})
            hint = did_you_mean(kind_name, known, f"known are {', '.join(sorted({kind.plural for kind in kinds}))}")
            raise click.BadParameter(f"unknown kind {each!r}; {hint}", param_hint="KIND")
        chosen.append(next((kind for kind in found if kind.group == _OUR_GROUP), found[0]))
    return chosen


@dataclass(frozen=True, slots=True)
class _Query:
    """What is asked of the API, and how it is shown. `namespace` "": all."""

    admin: AdminAddress
    kinds: Sequence[ListedKind]
    namespace: str
    name: str
    pairs: Sequence[tuple[str, str]]
    output: str | None

    def show_tables(self) -> None:
        found = [(kind, ask(self.admin, kind.path(self.namespace), self.pairs, accept=TABLE)) for kind in self.kinds]
        found = [(kind, table) for kind, table in found if table["rows"]]
        if not found:
            self._say_nothing_found()
        for index, (kind, table) in enumerate(found):
            if index and self.output != "name":
                click.echo()
            self._shower(kind, table)(table)

    def show_objects(self) -> None:
        if self.name:
            shown = ask(self.admin, self.kinds[0].path(self.namespace, self.name), not_found=1)
        else:
            lists = [ask(self.admin, kind.path(self.namespace), self.pairs) for kind in self.kinds]
            shown = {"apiVersion": "v1", "kind": "List", "items": [item for each in lists for item in each["items"]]}
        click.echo(self._text(shown))

    def watch(self) -> None:
        """Show changes until the command is interrupted (status 130), or the gateway stops."""
        kind = self.kinds[0]
        accept = "application/json" if self.output in ("yaml", "json") else TABLE
        path = kind.path(self.namespace)
        try:
            while True:
                found = ask(self.admin, path, self.pairs, accept=accept)
                show = self._shower(kind, found)
                show(found)
                since = ("resourceVersion", found["metadata"]["resourceVersion"])
                for line in lines(self.admin, path, [*self.pairs, ("watch", "true"), since], accept):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        break  # the version is too old: list again
                    show(event["object"])
                else:
                    return
        except KeyboardInterrupt:
            sys.exit(130)

    def _shower(self, kind: ListedKind, first: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
        """Returns what shows a list or one changed object of it; rows of tables are shown below one head."""
        if self.output in ("yaml", "json"):
            return self._show_each
        if self.output == "name":
            return lambda shown: _show_names(kind, shown["rows"])
        prefix = f"{kind.kind.lower()}/" if len(self.kinds) > 1 else ""
        has_namespaces = not self.namespace and kind.is_namespaced
        rows = Rows(first["columnDefinitions"], self.output == "wide", has_namespaces, prefix)
        return lambda shown: rows.show(shown["rows"])

    def _show_each(self, shown: dict[str, Any]) -> None:
        for each in shown.get("items", (shown,)):
            click.echo(("---\n" if self.output == "yaml" else "") + self._text(each))

    def _text(self, shown: dict[str, Any]) -> str:
        if self.output == "json":
            return json.dumps(shown, indent=2)
        import yaml

        return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=110).rstrip("\n")

    def _say_nothing_found(self) -> None:
        """Say so; exits with 1 if a name was asked for."""
        is_namespaced = any(kind.is_namespaced for kind in self.kinds)
        scope = f" in namespace {self.namespace}" if self.namespace and is_namespaced else ""
        hint = " (-n NS looks in another one, -A in all)" if scope else ""
        if self.name:
            click.echo(f"egressproxy: {self.kinds[0].resource} {self.name!r} not found{scope}{hint}", err=True)
            sys.exit(1)
        click.echo(f"nothing found{scope}{hint}", err=True)


def _show_names(kind: ListedKind, rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        click.echo(f"{'.'.join(filter(None, (kind.kind.lower(), kind.group)))}/{row['object']['metadata']['name']}")


_GAP: Final = "   "
_COLOURS: Final = {"True": "green", "False": "red", "Warning": "yellow"}


class Rows:
    """Prints rows below one head; later rows keep the column widths of the first ones."""

    def __init__(
        self, definitions: Sequence[Mapping[str, Any]], is_wide: bool, has_namespaces: bool, prefix: str
    ) -> None:
        """`definitions`: the Table's columns, with a priority only if `is_wide`; `prefix` goes before each name."""
        self._shown = [index for index, each in enumerate(definitions) if is_wide or not each["priority"]]
        self._name = next((index for index, each in enumerate(definitions) if each["name"] == "Name"), None)
        self._prefix = prefix
        self._has_namespaces = has_namespaces
        names = [definitions[index]["name"].upper() for index in self._shown]
        self._head = ["NAMESPACE", *names] if has_namespaces else names
        self._widths: list[int] = []

    def show(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Print these rows of the Table, and the head before the first."""
        if not rows:
            return
        texts = [self._texts(row) for row in rows]
        if not self._widths:
            columns = zip(self._head, *texts, strict=True)
            self._widths = [max(map(len, column)) for column in columns]
            self._print(self._head, {})
        for each in texts:
            self._print(each, _COLOURS)

    def _texts(self, row: Mapping[str, Any]) -> list[str]:
        cells = row["cells"]
        texts = [f"{self._prefix if index == self._name else ''}{cells[index]}" for index in self._shown]
        texts = [printable(text) for text in texts]
        return [row["object"]["metadata"].get("namespace", ""), *texts] if self._has_namespaces else texts

    def _print(self, texts: Sequence[str], colours: Mapping[str, str]) -> None:
        padded = [text.ljust(width) for text, width in zip(texts, self._widths, strict=True)]
        padded[-1] = texts[-1]
        if sys.stdout.isatty():
            click.echo(_GAP.join(click.style(each, fg=colours.get(each.rstrip())) for each in padded))
        else:
            click.echo(_GAP.join(padded).rstrip())
