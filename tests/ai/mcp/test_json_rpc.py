"""JSON-RPC from the first bytes of a body."""

from __future__ import annotations

import json

import pytest

from egressproxy.ai.mcp.json_rpc import MAX_BATCH, MAX_MEMBERS, OTHER, UNNAMED, RpcMessage, read_rpc


def one(text: str) -> RpcMessage:
    body = read_rpc(text.encode())
    assert body is not None
    assert not body.is_batch
    (message,) = body.messages
    return message


CALL = '{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"search","arguments":{"name":"no"}}}'


def test_a_call_has_a_method_a_tool_and_an_id():
    assert one(CALL) == RpcMessage("tools/call", "search", "7")


@pytest.mark.parametrize(
    "text",
    [
        ' \r\n\t{ "method" : "tools/call" , "params" : { "arguments" : {"a": [1, {"name": "x"}]}, "name" : "search" }, '
        '"jsonrpc" : "2.0", "id" : 7 } ',
        json.dumps({"params": {"_meta": {}, "name": "search"}, "id": 7, "method": "tools/call", "jsonrpc": "2.0"}),
    ],
)
def test_the_order_of_members_and_blanks_say_nothing(text: str):
    assert one(text) == RpcMessage("tools/call", "search", "7")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"jsonrpc":"2.0","method":"notifications/initialized"}', RpcMessage("notifications/initialized")),
        ('{"jsonrpc":"2.0","id":"a\\"b","method":"ping"}', RpcMessage("ping", UNNAMED, '"a\\"b"')),
        ('{"jsonrpc":"2.0","id":3,"result":{"method":"x"}}', RpcMessage(UNNAMED, UNNAMED, "3")),
        ('{"jsonrpc":"2.0","id":null,"method":"ping"}', RpcMessage("ping")),
        ('{"jsonrpc":"2.0","id":true,"method":"ping"}', RpcMessage("ping")),
        ('{"jsonrpc":"2.0","id":NaN,"method":"ping"}', RpcMessage("ping")),
        ('{"jsonrpc":"2.0","id":{"x":1},"method":"ping"}', RpcMessage("ping")),
        ('{"jsonrpc":"2.0","id":"' + "x" * 300 + '","method":"ping"}', RpcMessage("ping")),
        ('{"jsonrpc":"2.0","method":"resources/read","params":{"name":"x"}}', RpcMessage("resources/read")),
        ('{"jsonrpc":"2.0","method":"tools/call","params":["search"]}', RpcMessage("tools/call")),
        ('{"jsonrpc":"2.0","method":7}', RpcMessage(OTHER)),
        ('{"jsonrpc":"2.0","method":"a b"}', RpcMessage(OTHER)),
        ('{"jsonrpc":"2.0","method":"_other"}', RpcMessage(OTHER)),
        ('{"jsonrpc":"2.0","method":"x\\ny"}', RpcMessage(OTHER)),
        ('{"jsonrpc":"2.0","method":"' + "m" * 65 + '"}', RpcMessage(OTHER)),
        ('{"jsonrpc":"2.0","method":"tools/call","params":{"name":"a\\"} 1"}}', RpcMessage("tools/call", OTHER)),
        (f'{{"method":"tools/call","params":{{"name":"{"t" * 129}"}}}}', RpcMessage("tools/call", OTHER)),
    ],
)  # fmt: skip
def test_names_follow_a_grammar_and_ids_are_bounded(text: str, message: RpcMessage):
    assert one(text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"jsonrpc":"2.0","METHOD":"ping"}', RpcMessage(OTHER)),
        ('{"method":"ping","Method":"tools/call","params":{"name":"a"}}', RpcMessage(OTHER)),
        ('{"Method":"tools/call","method":"ping","params":{"name":"a"}}', RpcMessage(OTHER)),
        ('{"method":"ping","method":"tools/call","params":{"name":"a"}}', RpcMessage(OTHER)),
        ('{"JSONRPC":"2.0","Method":"tools/call","Params":{"Name":"a"}}', RpcMessage(OTHER)),
        ('{"method":"tools/call","Params":{"name":"a"}}', RpcMessage("tools/call", OTHER)),
        ('{"method":"tools/call","param\u017f":{"name":"a"}}', RpcMessage("tools/call", OTHER)),
        ('{"Params":{"name":"b"},"method":"tools/call","params":{"name":"a"}}', RpcMessage("tools/call", OTHER)),
        ('{"method":"tools/call","params":{"name":"a"},"Params":null}', RpcMessage("tools/call", OTHER)),
        ('{"method":"tools/call","params":{"name":"a"},"params":{}}', RpcMessage("tools/call", OTHER)),
        ('{"method":"tools/call","params":{"name":"a","Name":"b"}}', RpcMessage("tools/call", OTHER)),
        ('{"method":"tools/call","params":{"NAME":"b","name":"a"}}', RpcMessage("tools/call", OTHER)),
        ('{"method":"tools/call","params":{"name":"a","name":"b"}}', RpcMessage("tools/call", OTHER)),
        ('{"method":"tools/call","params":{"name":"a","arguments":{"Name":"b"}}}', RpcMessage("tools/call", "a")),
        ('{"method":"ping","id":1,"ID":2}', RpcMessage("ping")),
    ],
)
def test_what_servers_read_differently_has_no_name(text: str, message: RpcMessage):
    assert one(text) == message


@pytest.mark.parametrize("text", ["", " ", "null", "7", '"method"', "{", "{}", "[]", "[1]", '{"a":1}', "<x>", "\xff"])
def test_what_is_no_json_rpc_is_nothing(text: str):
    assert read_rpc(text.encode("latin-1")) is None


def test_what_is_cut_off_is_known_as_far_as_it_is_whole():
    seen = [read_rpc(CALL[:end].encode()) for end in range(len(CALL) + 1)]
    known = [body.messages[0] for body in seen if body is not None]
    assert known[0] == RpcMessage()  # jsonrpc alone
    assert known[-1] == RpcMessage("tools/call", "search", "7")
    assert set(known) == {
        RpcMessage(), RpcMessage(id="7"), RpcMessage("tools/call", id="7"), RpcMessage("tools/call", "search", "7")
    }  # fmt: skip
    assert one('{"jsonrpc":"2.0","method":"ping","id":12') == RpcMessage("ping")  # it may be 123


def test_deep_nesting_ends_the_look_and_nothing_else():
    assert one('{"jsonrpc":"2.0","method":"ping","params":' + "[" * 16_000) == RpcMessage("ping")


def test_a_long_number_ends_the_look_and_nothing_else():
    assert one('{"jsonrpc":"2.0","method":"ping","id":' + "9" * 10_000 + "}") == RpcMessage("ping")


def test_many_members_end_the_look():
    many = ",".join(f'"m{number}":0' for number in range(MAX_MEMBERS))
    assert one(f'{{"jsonrpc":"2.0","id":1,{many},"method":"ping"}}') == RpcMessage(id="1")
    assert one(f'{{"jsonrpc":"2.0","id":1,"params":{{{many},"name":"x"}},"method":"tools/call"}}') == RpcMessage(id="1")


def test_a_batch_is_several_messages():
    body = read_rpc(f'[{CALL}, {{"jsonrpc":"2.0","method":"ping","id":"b"}},7]'.encode())
    assert body is not None
    assert body.is_batch
    assert body.messages == (RpcMessage("tools/call", "search", "7"), RpcMessage("ping", UNNAMED, '"b"'))
    assert json.loads(body.error(-32000, "no", {}))["id"] is None


def test_a_batch_that_is_cut_off_has_the_messages_before():
    body = read_rpc(f"[{CALL},{CALL[:50]}".encode())
    assert body is not None
    assert [message.method for message in body.messages] == ["tools/call", "tools/call"]
    assert [message.tool for message in body.messages] == ["search", UNNAMED]


def test_of_a_long_batch_the_first_messages_count():
    body = read_rpc(json.dumps([{"jsonrpc": "2.0", "method": "ping"}] * 200).encode())
    assert body is not None
    assert len(body.messages) == MAX_BATCH


def test_an_error_object_answers_to_the_id():
    body = read_rpc(CALL.encode())
    assert body is not None
    error = {"code": -32600, "message": 'with "quotes"', "data": {"status": 404}}
    assert json.loads(body.error(-32600, 'with "quotes"', {"status": 404})) == {
        "jsonrpc": "2.0", "id": 7, "error": error
    }  # fmt: skip


@pytest.mark.parametrize(
    ("capabilities", "opens"),
    [({"elicitation": {"url": {}}}, True), ({"elicitation": {}}, False), ({}, False), ([], False), (None, False)],
)
def test_clients_say_whether_their_users_can_open_urls(capabilities, opens):
    meta = {"io.modelcontextprotocol/clientCapabilities": capabilities}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "_meta": meta}}
    assert read_rpc(json.dumps(message).encode()).messages[0].opens_urls is opens
