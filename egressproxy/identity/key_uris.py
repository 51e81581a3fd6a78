"""URLs of key sets (`jwksURI`). Source: RFC 3986, RFC 9110 section 4.2.2."""

from __future__ import annotations

import re
from typing import Final

from egressproxy.model.authority import AuthorityError, parse_authority

_URI: Final = re.compile(r"https://([^/?#@\s]+)(/[!-\"$-~]*)")


def read_key_uri(text: str) -> tuple[tuple[str, int], str]:
    """Host and port, and path with query. Raises ValueError: another scheme, no path, an address instead of a name."""
    found = _URI.fullmatch(text)
    if found is None:
        raise ValueError("no URL with https, a host and a path")
    try:
        authority = parse_authority(found[1].encode(), 443)
    except (AuthorityError, UnicodeError) as error:
        raise ValueError(f"its host is not valid: {error}") from None
    if authority.address is not None:
        raise ValueError("the host is an address, and has to be a name")
    return (authority.host, authority.port), found[2]
