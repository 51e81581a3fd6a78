"""Kubernetes' protobuf of four core kinds: `kubectl create namespace`, `configmap`, `secret` and `serviceaccount`.

Every other client, and kubectl apply, sends JSON. Unknown fields are refused rather than dropped. Hand-made: protobuf
makes an object of each of a million empty entries (3 MiB of them take 110 MiB here) before anybody can count them.
Source: k8s.io/apimachinery runtime/generated.proto (Unknown), meta/v1 and api/core/v1 generated.proto.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from egressproxy.admin.status import ApiError, bad_request
from egressproxy.telemetry.protobuf import read_varint

CONTENT_TYPE: Final = "application/vnd.kubernetes.protobuf"
#: Of one message.
MAX_FIELDS: Final = 50_000
_MAGIC: Final = b"k8s\x00"

Reader = Callable[[bytes | int], Any]
#: Field number -> (name, how it is read, whether it is an entry of a map).
Shape = Mapping[int, tuple[str, Reader, bool]]


def as_json(kind: str, body: bytes) -> bytes:
    """An object of this core kind, in a runtime.Unknown, as JSON. Raises ApiError(400, 415)."""
    shape = _KINDS.get(kind)
    if shape is None:
        raise ApiError(415, "UnsupportedMediaType", f"{CONTENT_TYPE} is not read for a {kind}; send application/json")
    try:
        if not body.startswith(_MAGIC):
            raise ValueError
        unknown = dict(_fields(memoryview(body)[len(_MAGIC) :].tobytes()))
        type_meta = _object(_bytes(unknown[1]), _TYPE)
        return json.dumps({**type_meta, **_object(_bytes(unknown[2]), shape)}).encode()
    except (ValueError, IndexError, KeyError, UnicodeDecodeError):
        raise bad_request(f"the body is no {kind} in protobuf that is known here; send JSON") from None


def _object(data: bytes, shape: Shape) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for number, value in _fields(data):
        name, read, is_map = shape[number]
        if not name:
            continue
        if is_map:
            entry = dict(_fields(_bytes(value)))
            made.setdefault(name, {})[_text(entry.get(1, b""))] = read(entry.get(2, b""))
        elif (found := read(value)) not in ("", {}, 0, False):  # proto2 writes what is not set, too
            made[name] = found
    return made


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    at = count = 0
    while at < len(data):
        count += 1
        if count > MAX_FIELDS:
            raise ValueError
        key, at = read_varint(data, at)
        value: bytes | int
        if key & 7 == 0:
            value, at = read_varint(data, at)
        elif key & 7 == 2:
            length, at = read_varint(data, at)
            if at + length > len(data):
                raise ValueError
            value, at = data[at : at + length], at + length
        else:
            raise ValueError
        yield key >> 3, value


def _bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise ValueError
    return value


def _text(value: bytes | int) -> str:
    return _bytes(value).decode()


def _base64(value: bytes | int) -> str:
    return b64encode(_bytes(value)).decode()


def _metadata(value: bytes | int) -> dict[str, Any]:
    return _object(_bytes(value), _OBJECT_META)


#: What the server says itself, and what does not matter here.
_LEFT_OUT: Final = ("", lambda _value: "", False)
_TYPE: Final[Shape] = {1: ("apiVersion", _text, False), 2: ("kind", _text, False)}
_OBJECT_META: Final[Shape] = {
    1: ("name", _text, False),
    2: ("generateName", _text, False),
    3: ("namespace", _text, False),
    **dict.fromkeys((4, 5, 6, 7, 8, 9, 10), _LEFT_OUT),
    11: ("labels", _text, True),
    12: ("annotations", _text, True),
}
_META: Final[Shape] = {1: ("metadata", _metadata, False)}
_KINDS: Final[Mapping[str, Shape]] = {
    "Namespace": {**_META, 2: _LEFT_OUT, 3: _LEFT_OUT},
    "ServiceAccount": _META,
    "ConfigMap": {
        **_META,
        2: ("data", _text, True),
        3: ("binaryData", _base64, True),
        4: ("immutable", bool, False),
    },
    "Secret": {
        **_META,
        2: ("data", _base64, True),
        3: ("type", _text, False),
        4: ("stringData", _text, True),
        5: ("immutable", bool, False),
    },
}
