"""`egressproxy version`: the versions of the program and of Python, the build, and the event loop."""

from __future__ import annotations

import platform
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec

import click

from egressproxy import __version__, build


@click.command("version")
def command() -> None:
    """Print the version of egressproxy and which build of it runs (compiled or pure), the Python that runs it, and the
    event loop that it uses.

    \b
    Example:
      egressproxy version
    """
    click.echo(
        f"egressproxy {__version__} ({build.name()}, Python {platform.python_version()}, event loop {_loop_name()})"
    )


def _loop_name() -> str:
    """The loop that `run` uses (`net.loop`), as far as uvloop's library shows: it is loaded and not run, which takes
    half a millisecond. To import uvloop and asyncio would make the command a third slower.
    """
    package = find_spec("uvloop")
    library = PathFinder.find_spec("uvloop.loop", package.submodule_search_locations) if package is not None else None
    if library is None:
        return "asyncio"
    try:
        module_from_spec(library)
    except ImportError:
        return "asyncio"
    return "uvloop"
