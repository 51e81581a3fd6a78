"""The command line. One file per verb, imported when it is asked for; a verb imports what it needs when it runs.

Exit statuses: 0 done, 1 the configuration or the start is bad, 2 wrong usage.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

from egressproxy import __version__

__all__ = ["main"]

_VERBS: Final = ("run", "check", "get", "explain", "diff", "reload", "schema", "filters", "version")

_HELP: Final = """An egress gateway: decides what may leave, carries it there, and says what did.

\b
Start an open proxy on this machine alone, for a first look:
  egressproxy run
  curl -x http://127.0.0.1:3128 https://example.com/

\b
Write down what may leave, check it, serve it:
  egressproxy schema EgressPolicy
  egressproxy check policies/
  egressproxy run --config policies/
"""


class _Verbs(click.Group):
    """Knows the verbs by name, and imports one only when it is used (or listed)."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        command = import_module(f"egressproxy.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Verbs, help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="egressproxy", message="%(prog)s %(version)s")
def main() -> None:
    pass
