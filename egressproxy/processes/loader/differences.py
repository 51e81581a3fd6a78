"""Differences: what a configuration that came into service has changed, as text, worked out by the loader."""

from __future__ import annotations

import zlib
from typing import Final

from egressproxy.model.work import at_once
from egressproxy.operators.explain.outline import Outline, outline
from egressproxy.operators.explain.outline_diff import compare, lines, masked
from egressproxy.processes.packing import unpacking
from egressproxy.processes.pickling import loads

#: The most characters of the text.
MAX_TEXT: Final = 64 * 1024
_CUT: Final = "… and more"


def answer(request: bytes) -> bytes:
    """The lines of `egressproxy diff`, without what may be a credential, in UTF-8. `request` is a pickled pair of specs
    as `ConfigManager` keeps them: compressed.
    """
    before, after = loads(request)
    text, size = [], 0
    for line in map(masked, lines(compare(_outline(before), _outline(after)))):
        size += len(line) + 1
        if size > MAX_TEXT - len(_CUT):
            text.append(_CUT)
            break
        text.append(line)
    return "\n".join(text).encode("utf-8", "backslashreplace")


def _outline(packed: bytes) -> Outline:
    return outline(at_once(unpacking(zlib.decompress(packed))))
