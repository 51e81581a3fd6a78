"""The start of a serving process: the same process (id, descriptors, environment) with a new interpreter, which reads
only its options. The command line's modules would take 4 MB for as long as the gateway runs.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from egressproxy.cli import PROGRAM
from egressproxy.model.secret import SecretBytes, SecretSource
from egressproxy.net.file_lock import memory_file
from egressproxy.net.process import child_command, collect_seldom
from egressproxy.processes.pickling import classes, dumps, loads
from egressproxy.run_options import ClusterOptions, FilterListener, RunOptions

if TYPE_CHECKING:
    from egressproxy.app import Started

#: The first statement: protects memory and descriptors from other processes of the same user, before other imports.
_CLOSED: Final = "from egressproxy.net.process import close_memory; close_memory()"
_KNOWN: Final = classes((ClusterOptions, FilterListener, Path, RunOptions, SecretBytes, SecretSource))


def begin(options: RunOptions) -> int:
    """Serve until a signal, in a new program unless the command line was called as a function; the exit status."""
    import click

    if click.get_current_context().find_root().obj != PROGRAM:
        return serve(options)
    with suppress(OSError), open(memory_file("egressproxy-options"), "r+b", 0) as file:
        file.write(dumps(options))  # which may hold a key: no argument, variable or named file has it
        os.set_inheritable(file.fileno(), True)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # the parent may have closed it
                stream.flush()
        # What was typed is behind it, for `ps` and `pgrep` alone.
        program = f"{_CLOSED}; from egressproxy.cli.serving import main; main({file.fileno()})"
        command = child_command(program)
        os.execv(command[0], [*command, "egressproxy", *sys.argv[1:]])  # noqa: S606 (this program)
    return serve(options)


def main(descriptor: int) -> None:
    """The new program; `descriptor` is of the options."""
    collect_seldom()
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb") as file:
        options: RunOptions = loads(file.read(), _KNOWN, "part of options")
    with suppress(OSError):  # what `ps` and `top` show
        Path("/proc/self/comm").write_text("egressproxy")
    sys.exit(serve(options))


def serve(options: RunOptions, started: Started | None = None) -> int:
    """Serve until a signal; the exit status. A wrong configuration is shown. `started`: see `app.run`."""
    if options.log_format == "json":
        from egressproxy.telemetry.json_lines import take_over

        take_over()  # also for what the imports below log
    from egressproxy.processes.loader.process import LoaderProcess

    first = None
    if options.config:
        with suppress(OSError):  # the next attempt reports what is wrong
            first = LoaderProcess()  # imports in parallel with this process
    from egressproxy import app
    from egressproxy.config.reading.problems import ConfigError

    try:
        return app.run(options, first, started)
    except ConfigError as error:
        from egressproxy.cli.problems import show_problems

        show_problems(error.problems, sys.stderr)
        return 1
    finally:
        if first is not None:
            first.close()
