"""`egressproxy version`: the versions of the program and of Python, and the event loop."""

from __future__ import annotations

import platform

import click

from egressproxy import __version__
from egressproxy.net.loop_name import LOOP_NAME

__all__ = ["command"]


@click.command("version")
def command() -> None:
    """Print the version of egressproxy, of the Python that runs it, and the event loop that it uses.

    \b
    Example:
      egressproxy version
    """
    click.echo(f"egressproxy {__version__} (Python {platform.python_version()}, event loop {LOOP_NAME})")
