"""The extensions of a WebSocket's handshake: permessage-deflate alone is understood (RFC 6455 section 9, RFC 7692)."""

from __future__ import annotations

import re
from typing import Final

from egressproxy.model.fields import Fields

EXTENSIONS: Final = b"sec-websocket-extensions"
#: The extension with its parameters, whose values have no commas.
_DEFLATE: Final = re.compile(
    rb"permessage-deflate(?:[ \t]*;[ \t]*(?:(?:client|server)_no_context_takeover"
    rb'|(?:client|server)_max_window_bits(?:[ \t]*=[ \t]*"?(?:[89]|1[0-5])"?)?))*',
    re.IGNORECASE,
)


class UnknownExtension(ValueError):
    """A server wants an extension that was not offered, or several."""


def narrow_offers(fields: Fields) -> None:
    """Remove the offers of a client but those of permessage-deflate."""
    offers = [each.strip(b" \t") for line in fields.get_all(EXTENSIONS) for each in line.split(b",")]
    known = [each for each in offers if _DEFLATE.fullmatch(each)]
    fields.remove(EXTENSIONS)
    if known:
        fields.add(EXTENSIONS, b", ".join(known))


def agrees_on_deflate(asked: Fields, answered: Fields) -> bool:
    """Whether client and server agree on permessage-deflate. Raises UnknownExtension."""
    lines = answered.get_all(EXTENSIONS)
    if not lines:
        return False
    if len(lines) > 1 or not _DEFLATE.fullmatch(lines[0].strip(b" \t")) or EXTENSIONS not in asked:
        raise UnknownExtension("the server wants a WebSocket extension that was not offered")
    return True
