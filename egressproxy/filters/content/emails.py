"""Emails: addresses with a domain of at least two labels (RFC 5321 section 4.1.2, the dot-string form; RFC 6531:
letters of every script). Quoted local parts and address literals are not found.
"""

from __future__ import annotations

import re
from typing import Final

from egressproxy.filters.content.spans import Detector, Span

__all__ = ["Emails"]

#: RFC 5321 section 4.5.3.1: octets there, characters here.
_MAX_LOCAL: Final = 64
_MAX_DOMAIN: Final = 253

#: What people and programs use of what is allowed; more would take `email=` of a query for a part of the address.
_LOCAL: Final = r"\w.%+'~-"
_LOCAL_BACKWARDS = re.compile(rf"[{_LOCAL}]{{1,{_MAX_LOCAL}}}")
_DOMAIN = re.compile(rf"[\w.-]{{1,{_MAX_DOMAIN}}}")
_LABELS = re.compile(r"(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.)+[^\W\d_](?:[\w-]{0,61}[^\W_])")
_OPEN = re.compile(rf"[@{_LOCAL}]{{1,{_MAX_LOCAL + 1 + _MAX_DOMAIN + 1}}}")


class Emails(Detector):
    """EMAIL."""

    __slots__ = ()

    needs = "@"

    def find(self, text: str, start: int, found: list[Span]) -> None:
        """As `Detector.find`."""
        at = text.find("@", start)
        while at >= 0:
            local = _LOCAL_BACKWARDS.match(text[max(start, at - _MAX_LOCAL) : at][::-1])
            domain = _DOMAIN.match(text, at + 1)
            if local is not None and domain is not None:
                labels = _LABELS.match(domain[0])
                length = len(local[0].rstrip(".'~-"))
                if labels is not None and length:
                    found.append(Span(at - length, at + 1 + labels.end(), "EMAIL", at - length))
            at = text.find("@", at + 1)

    def open_end(self, text: str, tail: str) -> int:
        """As `Detector.open_end`: every word may be the beginning of an address."""
        match = _OPEN.match(tail)
        return 0 if match is None else match.end()
