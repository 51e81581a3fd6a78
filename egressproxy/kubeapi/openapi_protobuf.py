"""The OpenAPI v2 document in protobuf, which is the only form that kubectl reads it in.

Only the message types that the document needs are written. Hand-made: with protobuf it is as long and as slow, and
the process that serves keeps 4 MiB more. Field numbers: gnostic, openapiv2/OpenAPIv2.proto.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

from egressproxy.telemetry.protobuf import varint

#: Clients ask for it by a name that is no media type, and cannot read that themselves.
CONTENT_TYPE: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
ACCEPTED: Final = (CONTENT_TYPE, "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")

Document = Mapping[str, Any]

_SCHEMA_TEXTS: Final = {"$ref": 1, "format": 2, "title": 3, "description": 4, "pattern": 13}
_SCHEMA_DOUBLES: Final = {"maximum": 7, "minimum": 9}
_SCHEMA_COUNTS: Final = {"maxLength": 11, "minLength": 12, "maxItems": 14, "minItems": 15, "maxProperties": 17}
_METHODS: Final = {"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}


def encode_document(document: Document) -> bytes:
    """An OpenAPI v2 document, as `openapi.document_v2` makes it, as the protobuf message openapi.v2.Document."""
    info = document["info"]
    paths = (_message(2, _named(path, _path_item(item))) for path, item in document["paths"].items())
    definitions = (_message(1, _named(name, _schema(part))) for name, part in document["definitions"].items())
    return b"".join((
        _text(1, document["swagger"]),
        _message(2, _text(1, info["title"]) + _text(2, info["version"])),
        _message(8, b"".join(paths)),
        _message(9, b"".join(definitions)),
    ))  # fmt: skip


def _schema(part: Document) -> bytes:
    made = [_text(number, part[name]) for name, number in _SCHEMA_TEXTS.items() if name in part]
    if "default" in part:
        made.append(_message(5, _any(part["default"])))
    for name, number in _SCHEMA_DOUBLES.items():
        if name in part:
            made.append(varint(number << 3 | 1) + struct.pack("<d", part[name]))
    made += [_count(number, part[name]) for name, number in _SCHEMA_COUNTS.items() if name in part]
    made += [_text(19, name) for name in part.get("required", ())]
    made += [_message(20, _any(value)) for value in part.get("enum", ())]
    if isinstance(part.get("additionalProperties"), Mapping):
        made.append(_message(21, _message(1, _schema(part["additionalProperties"]))))
    if "type" in part:
        made.append(_message(22, _text(1, part["type"])))
    if "items" in part:
        made.append(_message(23, _message(1, _schema(part["items"]))))
    if "properties" in part:
        properties = (_message(1, _named(name, _schema(each))) for name, each in part["properties"].items())
        made.append(_message(25, b"".join(properties)))
    return b"".join((*made, *_extensions(31, part)))


def _path_item(item: Document) -> bytes:
    return b"".join(_message(_METHODS[method], _operation(operation)) for method, operation in item.items())


def _operation(operation: Document) -> bytes:
    responses = (
        _message(1, _named(code, _message(1, _response(response)))) for code, response in operation["responses"].items()
    )
    return b"".join((
        _text(5, operation["operationId"]),
        *(_message(8, _message(1, _message(2, _message(3, _query(each))))) for each in operation["parameters"]),
        _message(9, b"".join(responses)),
        *_extensions(13, operation),
    ))  # fmt: skip


def _query(parameter: Document) -> bytes:
    return _text(2, parameter["in"]) + _text(4, parameter["name"]) + _text(6, parameter["type"])


def _response(response: Document) -> bytes:
    return _text(1, response["description"]) + _message(2, _message(1, _schema(response["schema"])))


def _extensions(number: int, part: Document) -> Iterable[bytes]:
    return (_message(number, _named(name, _any(value))) for name, value in part.items() if name.startswith("x-"))


def _any(value: Any) -> bytes:
    """As YAML, of which JSON is a part."""
    return _text(2, json.dumps(value))


def _named(name: str, value: bytes) -> bytes:
    return _text(1, name) + _message(2, value)


def _text(number: int, value: str) -> bytes:
    return _message(number, value.encode())


def _message(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def _count(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)
