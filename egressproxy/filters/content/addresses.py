"""Addresses of IP as text writes them: IPv4 (RFC 4632 section 3.1), IPv6 (RFC 4291 section 2.2) without its zone."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from egressproxy.filters.content.numbers import stands_alone
from egressproxy.filters.content.spans import Detector, Span

#: `ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255`
_MAX_LENGTH: Final = 45
#: A fifth number makes it a version or the like.
_IPV4 = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?!\.?[0-9A-Za-z])")
_SECOND_COLON = re.compile(r":[0-9A-Fa-f]{0,4}:")
_ADDRESS = re.compile(r"[0-9A-Fa-f:]{2,45}(?:\.[0-9]{1,3}){0,3}(?![0-9A-Za-z:])")
_FIRST_GROUP_BACKWARDS = re.compile(r"[0-9A-Fa-f]{0,4}(?![0-9A-Za-z:])")
_OPEN = re.compile(rf"[0-9A-Fa-f:.]{{1,{_MAX_LENGTH + 1}}}")


class IPAddresses(Detector):
    """IP_ADDRESS. `a::b` and `::` are left to programmers: an IPv6 address has a decimal digit."""

    __slots__ = ()

    needs = "0-9"

    def find(self, text: str, start: int, found: list[Span]) -> None:
        match = _SECOND_COLON.search(text, start)
        while match is not None:
            colon = match.start()
            group = _FIRST_GROUP_BACKWARDS.match(text[max(0, colon - 5) : colon][::-1])
            if group is not None and colon - group.end() >= start:
                begin = colon - group.end()
                whole = _ADDRESS.match(text, begin)
                if whole is not None and _has_digit(whole[0]) and _is(IPv6Address, whole[0]):
                    found.append(Span(begin, whole.end(), "IP_ADDRESS", begin))
            match = _SECOND_COLON.search(text, colon + 1)
        match = _IPV4.search(text, start)
        while match is not None:
            at = match.start()
            if stands_alone(text, at) and text[at - 1 : at] != "." and _is(IPv4Address, match[0]):
                found.append(Span(at, match.end(), "IP_ADDRESS", at))
            match = _IPV4.search(text, at + 1)

    def open_end(self, text: str, tail: str) -> int:
        match = _OPEN.match(tail)
        return 0 if match is None else match.end()


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)


def _is(kind: type[IPv4Address | IPv6Address], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
