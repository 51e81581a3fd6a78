"""Addresses as text writes them.

E-mail: with a domain of at least two labels (RFC 5321 section 4.1.2, the dot-string form; RFC 6531: letters of every
script). Quoted local parts and address literals are not found. IPv4 (RFC 4632 section 3.1), and IPv6 (RFC 4291 section
2.2) without its zone.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from egressproxy.ai.content.numbers import stands_alone
from egressproxy.ai.content.spans import Detector, Span

#: RFC 5321 section 4.5.3.1: octets there, characters here.
_MAX_LOCAL: Final = 64
_MAX_DOMAIN: Final = 253
_MAX_MARKED: Final = 1 + _MAX_DOMAIN

#: What people and programs use of what is allowed; more would take `email=` of a query for a part of the address.
_LOCAL: Final = r"\w.%+'~-"
#: As long as can be; it does not begin with a mark, which is rather one of the sentence.
_local_backwards = re.compile(rf"[{_LOCAL}]{{0,{_MAX_LOCAL - 1}}}[\w%+]").match
_domain = re.compile(r"@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.)+[^\W\d_](?:[\w-]{0,61}[^\W_])").match
_OPEN_EMAIL = re.compile(rf"[@{_LOCAL}]{{1,{_MAX_LOCAL + 1 + _MAX_DOMAIN + 1}}}")

#: `ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255`
_MAX_LENGTH: Final = 45
#: A fifth number makes it a version or the like.
_IPV4 = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?!\.?[0-9A-Za-z])")
_SECOND_COLON = re.compile(r":[0-9A-Fa-f]{0,4}:")
_ADDRESS = re.compile(r"[0-9A-Fa-f:]{2,45}(?:\.[0-9]{1,3}){0,3}(?![0-9A-Za-z:])")
_FIRST_GROUP_BACKWARDS = re.compile(r"[0-9A-Fa-f]{0,4}(?![0-9A-Za-z:])")
_OPEN_IP = re.compile(rf"[0-9A-Fa-f:.]{{1,{_MAX_LENGTH + 1}}}")


class Emails(Detector):
    """EMAIL."""

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
        match = _OPEN_EMAIL.match(tail)
        return 0 if match is None else match.end()


class IPAddresses(Detector):
    """IP_ADDRESS. `a::b` and `::` are left to programmers: an IPv6 address has a decimal digit."""

    needs = "0-9"

    def find(self, text: str, start: int, found: list[Span]) -> None:
        match = _SECOND_COLON.search(text, start)
        while match is not None:
            colon = match.start()
            group = _FIRST_GROUP_BACKWARDS.match(text[max(0, colon - 5) : colon][::-1])
            if group is not None and colon - group.end() >= start:
                begin = colon - group.end()
                whole = _ADDRESS.match(text, begin)
                if whole is not None and any(map(str.isdigit, whole[0])) and _is(IPv6Address, whole[0]):
                    found.append(Span(begin, whole.end(), "IP_ADDRESS", begin))
            match = _SECOND_COLON.search(text, colon + 1)
        match = _IPV4.search(text, start)
        while match is not None:
            at = match.start()
            if stands_alone(text, at) and text[at - 1 : at] != "." and _is(IPv4Address, match[0]):
                found.append(Span(at, match.end(), "IP_ADDRESS", at))
            match = _IPV4.search(text, at + 1)

    def open_end(self, text: str, tail: str) -> int:
        match = _OPEN_IP.match(tail)
        return 0 if match is None else match.end()


def _is(kind: type[IPv4Address | IPv6Address], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
