"""The process that loads: reads one request from standard input, compiles, answers on standard output, and ends.

It never outlives the one that asked, dumps no core (it has read secrets), and whatever is printed goes to standard
error.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import sys
import threading

__all__ = ["LIMIT_S", "main"]

#: Nothing takes this long; the kernel ends what does.
LIMIT_S = 120


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(LIMIT_S)
    answers = os.dup(1)
    os.dup2(2, 1)
    threading.Thread(target=_end_with_reader, args=(answers,), daemon=True).start()
    gc.disable()  # it ends before there is anything worth collecting
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for plugins takes longer than using none
    from egressproxy.loading.answer import answer  # the long part of the start: the request comes meanwhile
    from egressproxy.loading.request import read_request

    data = answer(*read_request(sys.stdin.buffer.read()))
    with open(answers, "wb") as file:
        file.write(data)
    os._exit(0)  # to free ten thousand objects one by one would take a while


def _end_with_reader(answers: int) -> None:
    """End when nobody can read the answer any more."""
    poll = select.poll()
    poll.register(answers, 0)
    poll.poll()
    os._exit(1)
