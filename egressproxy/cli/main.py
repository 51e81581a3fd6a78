"""The command line: one file per verb, imported when it is used. Exit statuses: 0 done, 1 the configuration or the
start is bad, 2 wrong usage.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from egressproxy import __version__
from egressproxy.cli import PROGRAM

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: The verbs and their one-line help, so that the list needs no import.
_VERBS: Final = {
    "run": "Serve traffic, or one command.",
    "init": "Write a first configuration, by three questions.",
    "check": "Report what is wrong with a configuration.",
    "get": "Show the objects in service, with their status.",
    "explain": "Explain what would happen to a request, and why.",
    "denials": "Show what was denied, why, and what would allow it.",
    "top": "Watch the traffic of a running gateway.",
    "dns": "Show what a name resolves to, and what may be dialled.",
    "diff": "Show what a new configuration would change.",
    "doctor": "Look for what this machine lacks.",
    "learn": "Write the policy that allows what clients were seen to do.",
    "audit": "Verify or show the records of Audit filters.",
    "cache": "Show or purge the caches of a running gateway.",
    "ca": "Make, show or replace CAs for interception.",
    "env": "Print what clients need to go through the gateway.",
    "holds": "Show, approve or deny requests that wait for approval.",
    "keys": "Make, list and revoke API keys of clients.",
    "kill-switch": "Block a client at once, and unblock it.",
    "mcp": "Print the pins of an MCP server's tools.",
    "reload": "Make a running gateway read its configuration again.",
    "serve-filters": "Serve the filters of a configuration to Envoy.",
    "tapes": "Check recordings of run --record, and exchange them.",
    "convert": "Write the policies of a Squid or Smokescreen.",
    "schema": "Print the JSON Schema of manifests.",
    "crds": "Print the CustomResourceDefinitions of our kinds.",
    "rbac": "Print the RBAC that a gateway needs in a cluster.",
    "filters": "Print the filter types and their settings, or begin one.",
    "placeholder": "Make a placeholder for a credential.",
    "completion": "Print the script for shell completion.",
    "version": "Print the version.",
}
#: Verbs that print a result and exit.
_SHORT_LIVED: Final = frozenset(
    {
        "init",
        "check",
        "convert",
        "explain",
        "denials",
        "dns",
        "diff",
        "doctor",
        "learn",
        "schema",
        "crds",
        "rbac",
        "filters",
        "keys",
        "placeholder",
        "version",
        "audit",
        "ca",
        "env",
        "mcp",
        "completion",
        "tapes",
    }
)

_HELP: Final = """An egress gateway: decides which requests may leave, forwards them, and logs every one.

\b
Start an open proxy that only this machine can reach, for a first look:
  egressproxy run
  curl -x http://127.0.0.1:3128 https://example.com/

\b
Write down what may leave, check it, and serve it:
  egressproxy schema EgressPolicy
  egressproxy check policies/
  egressproxy run --config policies/
"""


class _Verbs(click.Group):
    """Knows the names of the verbs, and imports a verb only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        command = import_module(f"egressproxy.cli.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises click.UsageError for an unknown verb, with the nearest one."""
        if args[0] not in _VERBS and not args[0].startswith("-") and not ctx.resilient_parsing:
            from egressproxy.model.near_names import did_you_mean

            hint = did_you_mean(args[0], _VERBS, f"the commands are {', '.join(_VERBS)}")
            raise click.UsageError(f"No such command '{args[0]}'; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of verbs; click's own would import every one of them."""
        with formatter.section("Commands"):
            formatter.write_dl(tuple(_VERBS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """The verbs that begin so; click's own would import every one of them."""
        from click.shell_completion import CompletionItem

        verbs = [CompletionItem(name, help=text) for name, text in _VERBS.items() if name.startswith(incomplete)]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The whole program, as the console script calls it. A short-lived verb runs without the garbage collector and
        does not tear modules down: both would take a quarter of the CPU time of `check`.
        """
        # Otherwise importing pydantic looks through every installed package for plugins; no verb needs one.
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
        if sys.argv[1:2] and sys.argv[1] not in _SHORT_LIVED:
            return super().__call__(*args, **kwargs, obj=PROGRAM)
        gc.disable()
        try:
            return super().__call__(*args, **kwargs)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:  # the reader of the output is gone
            status = status or 1
        os._exit(status)


@click.group(cls=_Verbs, help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="egressproxy", message="%(prog)s %(version)s")
def main() -> None:
    pass
