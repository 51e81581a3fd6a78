"""Messages of protocol buffers: types from short tables, in place of generated code, and a strict reading. Import it
only where such a message is needed: protobuf takes 5 MiB and a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

_SCALARS: Final = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
}


class WireError(ValueError):
    """The bytes are no valid message."""


def message_types(package: str, table: Mapping[str, str]) -> dict[str, Any]:
    """Classes by the names of messages, whose fields are `name=number:type` (`*` behind the number: repeated). A type
    is one of _SCALARS, by default string, or a message of the table. Defaults are written, too (proto2).
    """
    file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    for message, fields in table.items():
        made = file.message_type.add(name=message)
        for each in fields.split():
            named, _, kind = each.partition(":")
            name, _, number = named.partition("=")
            field = made.field.add(name=name, number=int(number.rstrip("*")))
            field.label = field.LABEL_REPEATED if number.endswith("*") else field.LABEL_OPTIONAL
            field.type = _SCALARS.get(kind or "string", field.TYPE_MESSAGE)
            if field.type == field.TYPE_MESSAGE:
                field.type_name = f".{package}.{kind}"
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in table}


def parsed(kind: Any, data: bytes) -> Any:
    """Read a message of the class `kind`. Raises WireError for invalid bytes, and for a known field with a wrong wire
    type, which protobuf would take for an unknown field.
    """
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise WireError(f"no message of protocol buffers: {error}") from None
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        _check(kind.FromString(data))
    return message


def without_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not empty or 0, the defaults of missing fields."""
    return {name: value for name, value in values.items() if value}


def text_bytes(value: bytes) -> bytes:
    """The bytes of a string, with invalid UTF-8, which parsers refuse, replaced by "?"."""
    return value if value.isascii() else value.decode("utf-8", "replace").replace("\ufffd", "?").encode()


def _check(message: Any) -> None:
    """Raises WireError if an unknown field has the number of a known field."""
    known = message.DESCRIPTOR.fields_by_number
    strangers: Any = UnknownFieldSet(message)
    for unknown in strangers:
        if unknown.field_number in known:
            name = known[unknown.field_number].name
            raise WireError(f"field {unknown.field_number} ({name}) has the wire type {unknown.wire_type}, not its own")
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if field.is_repeated else (value,):
                _check(each)
