"""`egressproxy version`."""

from __future__ import annotations

import platform

import click

from egressproxy import __version__

__all__ = ["command"]


@click.command("version")
def command() -> None:
    """Print the version of egressproxy and of the Python that runs it.

    \b
    Example:
      egressproxy version
    """
    click.echo(f"egressproxy {__version__} (Python {platform.python_version()})")
