"""The process that loads. It imports what reading takes, and waits; for each request it makes a copy of itself that
reads, compiles, answers and ends. So an answer costs no start, nothing that was read outlives its answer, and what a
copy does wrong ends with it.

It holds nothing but modules and one socket, on which a request comes as the name of a function of ours
(`package.module:function`, bytes in, bytes out) and three descriptors: where to read it, where to answer, and where
to say what is to be logged. It never outlives the one that asks, and dumps no core.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import count
from pathlib import Path

from egressproxy.net.process import close_memory
from egressproxy.processes.loader.request import LIMIT_S, STATUS

#: Requests that are served before what later ones need is made ahead: a start does not pay for reloads that never come.
FIRST_PREPARED = 2
#: Of the name of a function.
MAX_NAME = 256


def main(*, is_kept: bool) -> None:
    """Serve requests from standard input. Where not `is_kept`, this process itself serves the first one, and ends."""
    with suppress(OSError):  # Linux alone has these
        Path("/proc/self/comm").write_text("egress-loader")  # what `ps` and `top` show
        Path("/proc/self/oom_score_adj").write_text("1000")  # where memory is short it goes, and not who serves
    close_memory()
    gc.disable()  # a copy ends before there is anything worth collecting
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for plugins takes longer than using none
    from egressproxy.processes.loader.compilation import preparations

    control = socket.socket(fileno=0)
    prepared: Iterator[None] = iter(())
    function = b""
    for served in count():
        if served == FIRST_PREPARED:
            prepared = preparations()
        if served >= FIRST_PREPARED:
            prepared = _with_module_of(function.decode(), prepared)
        _prepare(prepared, control)
        function, descriptors, _, _ = socket.recv_fds(control, MAX_NAME, 3)
        if not function:
            os._exit(0)  # the one that asks is gone
        copy = os.fork() if is_kept else 0
        if not copy:
            _serve(function.decode(), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        _, status = os.waitpid(copy, 0)
        try:
            control.sendall(STATUS.pack(os.waitstatus_to_exitcode(status)))
        except OSError:
            os._exit(0)


def _with_module_of(function: str, prepared: Iterator[None]) -> Iterator[None]:
    """Import the function that was called last, then the rest: a client that writes many objects calls one again."""
    with suppress(Exception):  # a copy has told of it
        _function(function)
    yield
    yield from prepared


def _prepare(prepared: Iterator[None], control: socket.socket) -> None:
    """While nobody asks, make what otherwise every copy would have to make."""
    while not select.select((control,), (), (), 0)[0]:
        try:
            next(prepared)
        except StopIteration:
            return


def _serve(function: str, descriptors: Sequence[int]) -> None:
    """One request, to its answer and the end of this process, whatever happens."""
    status = 1
    try:
        signal.alarm(LIMIT_S)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        answers = os.dup(1)
        os.dup2(2, 1)  # whatever is printed is for the log
        threading.Thread(target=_end_with_reader, args=(answers,), daemon=True).start()
        with open(0, "rb", closefd=False) as file:
            request = file.read()
        data = _function(function)(request)
        with open(answers, "wb") as file:
            file.write(data)
        status = 0
    except BaseException as error:  # its text may hold anything, a Secret's value, too: the place says enough
        traceback.print_tb(error.__traceback__)
        print(f"internal error: {type(error).__name__}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)  # to free ten thousand objects one by one would take a while


def _function(name: str) -> Callable[[bytes], bytes]:
    """Imported by the copy that needs it. Raises ValueError where it is none of ours."""
    module, _, function = name.partition(":")
    if not module.startswith("egressproxy."):
        raise ValueError("no function of egressproxy")
    found: Callable[[bytes], bytes] = getattr(import_module(module), function)
    return found


def _end_with_reader(answers: int) -> None:
    """End when nobody can read the answer any more."""
    poll = select.poll()
    poll.register(answers, 0)
    poll.poll()
    os._exit(1)
