"""Emails: addresses with a domain of at least two labels (RFC 5321 section 4.1.2, the dot-string form; RFC 6531:
letters of every script). Quoted local parts and address literals are not found.
"""

from __future__ import annotations

import re
from typing import Final

from egressproxy.filters.content.spans import Detector, Span

#: RFC 5321 section 4.5.3.1: octets there, characters here.
_MAX_LOCAL: Final = 64
_MAX_DOMAIN: Final = 253
_MAX_MARKED: Final = 1 + _MAX_DOMAIN

#: What people and programs use of what is allowed; more would take `email=` of a query for a part of the address.
_LOCAL: Final = r"\w.%+'~-"
#: As long as can be; it does not begin with a mark, which is rather one of the sentence.
_local_backwards = re.compile(rf"[{_LOCAL}]{{0,{_MAX_LOCAL - 1}}}[\w%+]").match
_domain = re.compile(r"@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.)+[^\W\d_](?:[\w-]{0,61}[^\W_])").match
_OPEN = re.compile(rf"[@{_LOCAL}]{{1,{_MAX_LOCAL + 1 + _MAX_DOMAIN + 1}}}")


class Emails(Detector):
    """EMAIL."""

    __slots__ = ()

    needs = "@"

    def find(self, text: str, start: int, found: list[Span]) -> None:
        at = text.find("@", start)
        while at >= 0:
            domain = _domain(text, at, at + _MAX_MARKED)
            if domain is not None:
                local = _local_backwards(text[at - _MAX_LOCAL if at - start > _MAX_LOCAL else start : at][::-1])
                if local is not None:
                    begin = at - local.end()
                    found.append(Span(begin, domain.end(), "EMAIL", begin))
            at = text.find("@", at + 1)

    def open_end(self, text: str, tail: str) -> int:
        match = _OPEN.match(tail)
        return 0 if match is None else match.end()
