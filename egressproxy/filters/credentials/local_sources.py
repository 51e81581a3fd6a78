"""Values of this machine: a file beside the manifest, the output of a program. Messages never have their content."""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from egressproxy.filters.credentials.config import Command
from egressproxy.filters.credentials.refresher import Fetched, FetchError
from egressproxy.model import state_folder
from egressproxy.net.program import run_program

MAX_FILE_BYTES: Final = 65536
#: A file is read again after this time, in seconds.
FILE_S: Final = 5.0
#: The environment variables of a program, besides those that its config names.
_USUAL_VARIABLES: Final = ("PATH", "HOME", "LANG")


def locate(folder: str, relative: str) -> Path:
    """The path of the file that a config names, which need not exist. Raises ValueError if reading it is forbidden."""
    if not folder:
        raise ValueError(f"{relative}: `file` needs a manifest in a folder; this object did not come from a file")
    root = Path(folder).resolve()
    path = root / relative
    if Path(relative).is_absolute() or ".." in path.parts or not path.resolve().is_relative_to(root):
        raise ValueError(f"{relative}: the path has to stay inside the folder of the manifest")
    if state_folder.holds(path):
        raise ValueError(f"{relative}: the file is in a folder of objects that were written through the API")
    return path


def read_file(path: Path) -> bytes:
    """The content of a regular file of at most MAX_FILE_BYTES. Raises FetchError with path and reason."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise FetchError(f"{path} is not a regular file", is_final=True)
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise FetchError(f"{path} cannot be read ({error.strerror})", is_final=True) from None
    if len(data) > MAX_FILE_BYTES:
        raise FetchError(f"{path} has more than {MAX_FILE_BYTES} bytes", is_final=True)
    return data


def from_file(folder: str, relative: str) -> Callable[[], Awaitable[Fetched]]:
    """Reads the file every FILE_S seconds. A removed file has no value. Raises ValueError as `locate`."""
    locate(folder, relative)

    async def fetch() -> Fetched:
        try:
            found = locate(folder, relative)  # a link may have changed
        except ValueError as error:
            raise FetchError(str(error), is_final=True) from None
        return Fetched(read_file(found), refresh_s=FILE_S)

    return fetch


def from_command(command: Command) -> Callable[[], Awaitable[Fetched]]:
    """Runs the program every `ttlSeconds`. While the program fails, its last output is used."""
    program = command.argv[0]

    async def fetch() -> Fetched:
        names = (*_USUAL_VARIABLES, *command.environment)
        environment = {name: os.environ[name] for name in names if name in os.environ}
        try:
            status, output = await run_program(command.argv, environment, command.timeout_seconds, command.max_bytes)
        except TimeoutError:
            raise FetchError(f"{program} did not end within {command.timeout_seconds} s") from None
        except OverflowError:
            raise FetchError(f"{program} printed more than {command.max_bytes} bytes") from None
        except OSError as error:
            raise FetchError(f"{program} cannot be started ({error.strerror})") from None
        if status != 0:
            raise FetchError(f"{program} ended with status {status}")
        if not output.strip():
            raise FetchError(f"{program} printed nothing")
        return Fetched(output, refresh_s=float(command.ttl_seconds))

    return fetch
