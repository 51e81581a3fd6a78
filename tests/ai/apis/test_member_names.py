from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from egressproxy.ai.apis import member_names
from egressproxy.ai.apis.member_names import AI_REQUEST, RPC_ANSWER, Members, rpc_fault

NAMED = {name: each for name, each in vars(member_names).items() if isinstance(each, Members)}


def levels(members: Members) -> Iterator[Members]:
    yield members
    for inner in members.inner.values():
        if inner is not members:
            yield from levels(inner)


@pytest.mark.parametrize("table", NAMED)
def test_no_name_of_a_table_is_another_spelling_of_one_that_decides(table: str):
    for level in levels(NAMED[table]):
        assert level.fault(dict.fromkeys(level._known)) == ""


CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search", "arguments": {"Name": 1}}}


@pytest.mark.parametrize(
    ("message", "place", "name"),
    [
        ({"METHOD": "tools/call"}, "'METHOD',", "method"),
        ({"JsonRpc": "2.0", "method": "ping"}, "'JsonRpc',", "jsonrpc"),
        ({"Params": {}}, "'Params',", "params"),
        ({"param\u017f": {}}, r"'param\u017f',", "params"),
        ({"params": {"name": "search", "Name": "shell"}}, "'Name' in 'params',", "name"),
        ({"params": {"name": "search", "argument\u017f": {}}}, r"'argument\u017f' in 'params',", "arguments"),
        ({"method": "resources/read", "params": {"URI": "x"}}, "'URI' in 'params',", "uri"),
        ({"method": "prompts/get", "params": {"Name": "x"}}, "'Name' in 'params',", "name"),
        ({"method": "completion/complete", "params": {"Ref": {}}}, "'Ref' in 'params',", "ref"),
        ({"method": "completion/complete", "params": {"ref": {"Uri": 1}}}, "'Uri' in 'params.ref',", "uri"),
    ],
)
def test_a_fault_says_which_member_where_and_how_it_is_spelled(message: dict[str, Any], place: str, name: str):
    assert rpc_fault(CALL | message) == f"it has {place} which some servers take for `{name}`: write `{name}`"
    assert "[1]" in rpc_fault([CALL, CALL | message])


@pytest.mark.parametrize(
    "message", [CALL, {**CALL, "method": "x/y", "params": {"Name": 1}}, {"result": {"Name": 1}}, 7, None, [], [[]]]
)
def test_what_is_no_structure_has_any_names(message: Any):
    assert rpc_fault(message) == ""
    assert rpc_fault([message]) == ""


def test_schemas_and_contents_have_any_names():
    schema = {"type": "object", "properties": {"Name": {}}, "Type": 1}
    function = {"name": "a", "parameters": schema}
    tools = [{"type": "function", "function": function}, {"name": "a", "input_schema": schema}, {"toolSpec": function}]
    messages = [{"role": "user", "content": [{"Name": 1}], "Role": 1}]
    assert AI_REQUEST.fault({"model": "m", "tools": tools, "messages": messages, "metadata": {"Model": "x"}}) == ""
    listed = {"tools": [{"name": "a", "inputSchema": schema}], "structuredContent": {"Tools": 1}}
    assert RPC_ANSWER.fault({"jsonrpc": "2.0", "result": listed}) == ""
