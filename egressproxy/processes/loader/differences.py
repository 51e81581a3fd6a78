"""Differences: what a configuration that came into service has changed, as text, worked out by the loader."""

from __future__ import annotations

import zlib
from typing import Final

from egressproxy.model.work import at_once
from egressproxy.operators.explain.outline import outline
from egressproxy.operators.explain.outline_diff import compare, lines, masked
from egressproxy.processes.packing import unpacking
from egressproxy.processes.pickling import loads

#: The most characters of the text.
MAX_TEXT: Final = 64 * 1024
_CUT: Final = "\n… and more"


def answer(request: bytes) -> bytes:
    """The lines of `egressproxy diff`, without what may be a credential, in UTF-8. `request` is a pickled pair of specs
    as `ConfigManager` keeps them: compressed.
    """
    before, after = (outline(at_once(unpacking(zlib.decompress(packed)))) for packed in loads(request))
    text = "\n".join(map(masked, lines(compare(before, after))))
    if len(text) > MAX_TEXT:
        text = text[: MAX_TEXT - len(_CUT)].rpartition("\n")[0] + _CUT
    return text.encode("utf-8", "backslashreplace")
