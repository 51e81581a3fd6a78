"""BodyKind: the format of the texts in a body, by its Content-Type."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from egressproxy.model.fields import Fields, finder


class BodyKind(Enum):
    """The format of the texts in a body."""

    JSON = "json"
    LINES = "lines"  # of JSON
    TEXT = "text"
    FORM = "form"
    EVENTS = "events"  # a stream whose framing an editor of streams knows
    UNKNOWN = "unknown"  # no Content-Type
    OTHER = "other"  # without readable texts


_KINDS: Final = {
    b"": BodyKind.UNKNOWN,
    b"application/json": BodyKind.JSON,
    b"application/x-www-form-urlencoded": BodyKind.FORM,
    **dict.fromkeys((b"application/x-ndjson", b"application/jsonl", b"application/x-jsonlines"), BodyKind.LINES),
    **dict.fromkeys((b"text/event-stream", b"application/vnd.amazon.eventstream"), BodyKind.EVENTS),
    **dict.fromkeys((b"application/xml", b"application/javascript", b"application/yaml"), BodyKind.TEXT),
    b"application/graphql": BodyKind.TEXT,
}
#: Messages in envelopes, which may be compressed or in base64, with any suffix after the plus sign.
_ENVELOPES: Final = (b"application/grpc", b"application/connect+")
_content_types: Final = finder(b"content-type").findall
_CHARSET = re.compile(rb';\s*charset\s*=\s*"?([^\s";,]*)', re.IGNORECASE)
_READ_CHARSETS: Final = frozenset((b"", b"utf-8", b"utf8", b"us-ascii", b"ascii"))


def media_type_of(fields: Fields) -> bytes:
    """The type of Content-Type, in lower case, without parameters; b"" for none, b"?" for several lines."""
    return type_and_kind_of(fields)[0]


def kind_of(fields: Fields) -> BodyKind:
    """The kind of a body, by its Content-Type. Text in an unsupported charset is OTHER."""
    return type_and_kind_of(fields)[1]


def type_and_kind_of(fields: Fields) -> tuple[bytes, BodyKind]:
    """`media_type_of` and `kind_of` together."""
    lines = tuple(_content_types(fields.block))
    return _known_types.get(lines) or _type_of_lines(lines)


def _type_of_lines(lines: tuple[bytes, ...]) -> tuple[bytes, BodyKind]:
    if len(lines) != 1:
        return (b"?", BodyKind.OTHER) if lines else (b"", BodyKind.UNKNOWN)
    known = _kind_of_line(lines[0])
    if len(lines[0]) <= _MAX_KNOWN:
        if len(_known_types) >= _MAX_TYPES:
            _known_types.clear()
        _known_types[lines] = known
    return known


def _kind_of_line(line: bytes) -> tuple[bytes, BodyKind]:
    media_type = line.partition(b";")[0].strip().lower()
    charset = _CHARSET.search(line)
    is_read = charset is None or charset[1].lower() in _READ_CHARSETS
    kind = _KINDS.get(media_type, BodyKind.OTHER)
    if media_type and (not is_read or media_type.startswith(_ENVELOPES)):
        kind = BodyKind.OTHER
    elif media_type not in _KINDS and media_type.endswith(b"+json"):
        kind = BodyKind.JSON
    elif media_type not in _KINDS and (media_type.startswith(b"text/") or media_type.endswith(b"+xml")):
        kind = BodyKind.TEXT
    return media_type, kind


#: A cache for frequent values: the most entries, and the most bytes of an entry.
_known_types: Final[dict[tuple[bytes, ...], tuple[bytes, BodyKind]]] = {}
_MAX_TYPES: Final = 256
_MAX_KNOWN: Final = 128
