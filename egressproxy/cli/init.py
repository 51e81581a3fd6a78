"""`egressproxy init`: three questions, and the configuration that follows from the answers."""

from __future__ import annotations

import shlex
import textwrap
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

_CLIENTS: Final = {
    "machine": "the programs of this machine",
    "pod": "the containers of a Pod, with the gateway as a sidecar",
    "network": "the machines of a network",
}
#: Hosts by the word that stands for them: those that the clients of these services ask first.
_PRESETS: Final = {
    "ai": ("AI providers", ("api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com")),
    "packages": ("package indexes", (
        "pypi.org", "files.pythonhosted.org", "registry.npmjs.org", "index.crates.io", "static.crates.io",
        "proxy.golang.org", "sum.golang.org",
    )),
    "github": ("GitHub", (
        "github.com", "api.github.com", "codeload.github.com", "raw.githubusercontent.com",
        "objects.githubusercontent.com", "release-assets.githubusercontent.com",
    )),
}  # fmt: skip
_REPORT: Final = "report"
_REPORTED: Final = "nothing yet: requests pass, and the log says what a list would refuse"
_ADDRESSES: Final = {
    "machine": ("127.0.0.1", "this machine alone"), "pod": ("127.0.0.1", "the Pod alone"),
    "network": ("0.0.0.0", "every interface of this machine"),  # noqa: S104 - what was asked for
}  # fmt: skip
_MANIFESTS: Final = """\
# Written by `egressproxy init`. A running gateway applies each change of this file.
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: egress, namespace: agents}}
spec:
  gatewayClassName: egressproxy
  addresses: [{{type: IPAddress, value: {}}}]     # {}
  listeners:
  - {{name: forward, port: 3128, protocol: egressproxy.io/forward-proxy}}
---
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {{name: default, namespace: agents}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: egress}}]"""
_IDENTITY: Final = """\
  identity:           # other networks are refused. Keys for clients: docs/tutorials/standalone.md
    required: true
    address:
      clients:
      - {cidrs: [10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 127.0.0.0/8, "fc00::/7", "::1"], namespace: agents, \
serviceAccount: network}"""
_INTERCEPT: Final = """\
  intercept:          # filters and HTTPRoutes see the requests inside. Clients have to trust ca/ca.crt
    caCertificateRef: {name: interception-ca}"""
_OPTIONS: Final = "all of --clients, --allow, and --intercept or --no-intercept"
_FILE: Final = "egress.yaml"
_CA: Final = "ca"


def _suggest(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem[str]]:
    words = {_REPORT: _REPORTED, **{each: title for each, (title, _) in _PRESETS.items()}}
    return [CompletionItem(word, help=text) for word, text in words.items() if word.startswith(begun)]


@click.command("init")
@click.argument("folder", metavar="[DIR]", type=click.Path(file_okay=False, path_type=Path), default="egress")
@click.option("--clients", type=click.Choice(tuple(_CLIENTS)), help="Who asks the gateway.")
@click.option(
    "--allow", multiple=True, metavar="WORD", shell_complete=_suggest,
    help="What may leave: a host name, *.SUFFIX, ai, packages or github; or report, to let everything pass and record "
    "what the list would refuse. May be given again.",
)  # fmt: skip
@click.option("--intercept/--no-intercept", default=None, help="Look into TLS to these hosts, with a new CA; or not.")
def command(folder: Path, clients: str | None, allow: tuple[str, ...], intercept: bool | None) -> None:
    """Ask three questions, and write a configuration with comments into DIR (egress). An option answers its question.

    Nothing is overwritten. With --intercept DIR gets a CA, too.

    \b
    Examples:
      egressproxy init
      egressproxy init my-config --clients machine --allow report --no-intercept
      egressproxy init my-config --clients pod --allow ai --allow '*.example.com' --intercept

    Exit status: 0 done, 1 DIR has such a file already or cannot be written, 2 wrong usage.
    """
    target = folder / _FILE
    for found in (target, folder / _CA):
        if found.exists():
            raise click.ClickException(f"{found} is there already: name another folder, egressproxy init DIR")
    if not clients:
        _show("Who are the clients?", _CLIENTS)
        clients = _ask("Clients", "machine", type=click.Choice(tuple(_CLIENTS)))
    if not allow:
        presets = {word: f"{title}: {', '.join(hosts)}" for word, (title, hosts) in _PRESETS.items()}
        _show("What may leave?", {_REPORT: _REPORTED, **presets, "HOST": "a host"})
        allow = tuple(_ask("One or more of these, with spaces between", _REPORT).replace(",", " ").split())
    hosts = _hosts(allow)
    if intercept is None:
        question = "Look into TLS to these hosts (with a new CA, that the clients have to trust)?"
        intercept = bool(hosts) and bool(_ask(question, False, type=bool))
    if intercept and not hosts:
        raise click.UsageError("--intercept needs hosts to look into: name them with --allow, beside report")
    text = _written(clients, hosts, report=_REPORT in allow, intercept=intercept)
    try:
        if intercept:
            from egressproxy.cli.ca_folder import CaFolder

            CaFolder.create(folder / _CA, "", 730, sorted({each.removeprefix("*.") for each in hosts}), ())
        folder.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise click.ClickException(f"{target} cannot be written: {error.strerror}") from None
    click.echo(f"\nWritten: {target}" + (f", and a CA in {folder / _CA}" if intercept else "") + "\nNext:")
    for line in _next(folder, clients, report=_REPORT in allow, intercept=intercept):
        click.echo(f"  {line}")


def _show(question: str, choices: dict[str, str]) -> None:
    click.echo(f"\n{question}")
    for word, text in choices.items():
        click.echo(f"  {word:<9} {text}")


def _ask(question: str, default: Any, type: Any = None) -> Any:
    try:
        return click.prompt(question, default=default, type=type, show_choices=False)
    except click.Abort:
        raise click.UsageError(f"no answer: without a terminal give {_OPTIONS}") from None


def _hosts(allow: tuple[str, ...]) -> dict[str, str]:
    """The hosts of these words, each once, with the title of their preset ("" for names). Raises click.BadParameter."""
    from pydantic import TypeAdapter, ValidationError

    from egressproxy.config.resources.hostnames import DestinationHostname

    words = ", ".join((_REPORT, *_PRESETS))
    found: dict[str, str] = {}
    for word in allow:
        title, hosts = _PRESETS.get(word, ("", (word,)))
        for host in hosts if word != _REPORT else ():
            try:
                name = TypeAdapter(DestinationHostname).validate_python(host)
                problem = "" if "." in name else f"{host}: write a whole host name, or one of {words}"
            except ValidationError as error:
                problem = f"{host}: {error.errors()[0]['msg'].removeprefix('Value error, ')}; or write one of {words}"
            if problem:
                raise click.BadParameter(problem, param_hint="--allow")
            found.setdefault(name, title)
    return found


def _written(clients: str, hosts: dict[str, str], *, report: bool, intercept: bool) -> str:
    address, who = _ADDRESSES[clients]
    lines = [_MANIFESTS.format(address, who)]
    if report:
        lines.append("  mode: Report      # all passes, and the log says `would_deny`; Enforce ends that")
    more = "" if hosts else " []         # such as: - {hostnames: [api.example.com], ports: [443]}"
    lines += ["  destinations:", f"    allow:{more}"]
    for title in dict.fromkeys(hosts.values()):
        lines += [f"    # {title}"] if title else []
        lines += [f"    - {{hostnames: [{_quoted(host)}], ports: [443]}}" for host, of in hosts.items() if of == title]
    if clients == "network":
        lines.append(_IDENTITY)
    if clients == "pod":
        lines.append("  limits: {connectionsPerClient: 0}     # all connections are of one client")
    if intercept:
        named = textwrap.wrap(
            f"hostnames: [{', '.join(map(_quoted, hosts))}]", 116, initial_indent=" " * 4, subsequent_indent=" " * 6,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        lines += [_INTERCEPT, *named]
    return "\n".join(lines) + "\n"


def _quoted(host: str) -> str:
    return f'"{host}"' if host.startswith("*") else host


def _next(folder: Path, clients: str, *, report: bool, intercept: bool) -> list[str]:
    """Three commands."""
    at = shlex.quote(str(folder))
    secret = f" --secret agents/interception-ca={shlex.quote(str(folder / _CA))}" if intercept else ""
    if clients == "pod":
        more = "kubectl apply -f agent.yaml     # the Pod of docs/tutorials/sidecar.md"
        if intercept:
            more = f"kubectl create secret generic interception-ca -n agents --from-file={at}/{_CA}"
        then = [f"kubectl create configmap egress -n agents --from-file={at}/{_FILE}", more]
    else:
        who = " --as agents/network" * (clients == "network")
        asked = " -- curl -sS https://example.com/" * (clients == "machine")
        explain = f"egressproxy explain CONNECT example.com:443 --config {at}{who}"
        then = [explain, f"egressproxy run --config {at}{secret}{asked}"]
        if report and asked:
            then = [
                f"egressproxy run --config {at}{secret} --access-log log.jsonl{asked}",
                f"egressproxy learn log.jsonl --at-least 1 --output {at}/learned.yaml",
            ]
    return [f"egressproxy check {at}{secret}", *then]
