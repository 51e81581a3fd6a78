"""The OpenAPI v2 document in protobuf, read back by hand (https://protobuf.dev/programming-guides/encoding/)."""

from __future__ import annotations

import json
import struct
from collections import defaultdict

from egressproxy.config.schema import json_schema
from egressproxy.kubeapi import openapi, openapi_protobuf

Fields = dict[int, list[bytes]]


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        octet = data[at]
        value |= (octet & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if octet < 0x80:
            return value, at


def fields(data: bytes) -> Fields:
    """What a message has; numbers as eight octets."""
    found: Fields = defaultdict(list)
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 2:
            length, at = varint(data, at)
            found[number].append(data[at : at + length])
            at += length
        elif wire == 1:
            found[number].append(data[at : at + 8])
            at += 8
        else:
            assert wire == 0
            value, at = varint(data, at)
            found[number].append(struct.pack("<q", value))
    return found


def mapped(data: bytes, number: int) -> dict[str, bytes]:
    """A map of names to messages."""
    return {fields(each)[1][0].decode(): fields(each)[2][0] for each in fields(data)[number]}


def test_a_schema_comes_back_with_its_fields_and_references():
    document = {
        "swagger": "2.0",
        "info": {"title": "t", "version": "1"},
        "paths": {},
        "definitions": {
            "a.B": {
                "type": "object",
                "description": "d",
                "required": ["x"],
                "properties": {
                    "x": {"$ref": "#/definitions/c"},
                    "n": {"type": "integer", "minimum": 1, "maximum": 300, "default": 7},
                    "l": {"type": "array", "items": {"type": "string", "enum": ["p", "q"]}, "maxItems": 300},
                    "m": {"type": "object", "additionalProperties": {"type": "string"}},
                },
                "x-kubernetes-group-version-kind": [{"kind": "B"}],
            }
        },
    }
    found = fields(openapi_protobuf.encode_document(document))
    assert found[1] == [b"2.0"]
    part = fields(mapped(found[9][0], 1)["a.B"])
    assert (part[4], part[19], fields(part[22][0])[1]) == ([b"d"], [b"x"], [b"object"])
    assert fields(part[31][0])[1] == [b"x-kubernetes-group-version-kind"]
    assert json.loads(fields(fields(part[31][0])[2][0])[2][0]) == [{"kind": "B"}]
    properties = {name: fields(each) for name, each in mapped(part[25][0], 1).items()}
    assert properties["x"][1] == [b"#/definitions/c"]
    assert struct.unpack("<d", properties["n"][7][0]) == (300.0,)
    assert fields(properties["n"][5][0])[2] == [b"7"]
    assert struct.unpack("<q", properties["l"][14][0]) == (300,)
    items = fields(fields(properties["l"][23][0])[1][0])
    assert [fields(each)[2] for each in items[20]] == [[b'"p"'], [b'"q"']]
    assert fields(fields(fields(properties["m"][21][0])[1][0])[22][0])[1] == [b"string"]


def test_the_whole_document_can_be_packed():
    schema = json.dumps(json_schema()).encode()
    document = openapi.document_v2(schema, True)
    found = fields(openapi_protobuf.encode_document(document))
    assert mapped(found[9][0], 1).keys() == document["definitions"].keys()
    assert mapped(found[8][0], 2).keys() == document["paths"].keys()
