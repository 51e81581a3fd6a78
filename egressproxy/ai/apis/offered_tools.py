"""OfferedTool: a tool that the model of a request may call, in the form of any API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from egressproxy.ai.apis.message import in_object
from egressproxy.ai.apis.splice import Path

#: Where tools are offered. In the last place Bedrock hands on what is the model's own.
_OFFERS: Final[tuple[tuple[str, ...], ...]] = (
    ("tools",),
    ("functions",),
    ("toolConfig", "tools"),
    ("additionalModelRequestFields", "tools"),
)
#: Lists of functions in a tool of Gemini.
_DECLARATIONS: Final = ("functionDeclarations", "function_declarations")
#: With this member models of OpenAI's chat API always search.
WEB_SEARCH: Final = "web_search_options"
#: Types of tools that have no name in the API of OpenAI: one that is written there as well says nothing.
_NAMELESS: Final = frozenset(
    (
        "mcp", "web_search", "web_search_preview", "file_search", "code_interpreter", "computer_use_preview",
        "computer", "image_generation", "local_shell", "shell", "apply_patch",
    )
)  # fmt: skip


class OfferedTool(NamedTuple):
    """A tool that the model may call; a provider's own has its type for a name. `path`: its element of an array, or its
    member of an object.
    """

    name: str
    path: Path


def offered_tools(value: dict[str, Any]) -> list[OfferedTool]:
    """The tools that a request (its JSON) offers."""
    found: list[OfferedTool] = []
    for root in _OFFERS:
        for path, tool in _objects(in_object(value, *root), root):
            _find_offers(tool, path, found)
    for at, item in _objects(value.get("input"), ("input",)):  # OpenAI: tools added by input items
        for path, tool in _objects(item.get("tools"), (*at, "tools")):
            _find_offers(tool, path, found)
    for path, _ in _objects(value.get("mcp_servers"), ("mcp_servers",)):  # Anthropic: all tools of a server
        found.append(OfferedTool("mcp_servers", path))
    if value.get(WEB_SEARCH) is not None:
        found.append(OfferedTool("web_search", (WEB_SEARCH,)))
    return found


def _objects(value: object, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each object of an array with its path, a string as one of this name. An object alone is an array of one, as the
    JSON of protobuf has it for Gemini.
    """
    if type(value) is dict:
        yield path, value
    elif type(value) is list:
        for index, each in enumerate(value):
            yield (*path, index), each if type(each) is dict else {"name": each} if type(each) is str else {}


def _find_offers(tool: dict[str, Any], path: Path, found: list[OfferedTool]) -> None:
    """The tools that one element of an array offers: of Gemini every member is one, or a list of functions. A namespace
    of OpenAI is one, and so is each tool in it.
    """
    lists = [key for key in _DECLARATIONS if type(tool.get(key)) is list or type(tool.get(key)) is dict]
    for key in lists:
        for at, each in _objects(tool[key], (*path, key)):
            found += [OfferedTool(name, at) for name in names_of_tool(each)]
    for at, each in _objects(tool.get("tools"), (*path, "tools")):
        _find_offers(each, at, found)
    names = _said_names(tool)
    if names or not (lists or tool) or type(tool.get("type")) is str:
        found += [OfferedTool(name, path) for name in names or names_of_tool(tool)]
    else:
        found += [OfferedTool(key, (*path, key)) for key in tool if key not in lists]


def names_of_tool(tool: dict[str, Any]) -> list[str]:
    """All names of a tool, since servers differ. An unnamed tool has its type, or first member, as name."""
    names = _said_names(tool)
    if not names:
        said = tool.get("type") or next(iter(tool), "")
        names.append(said if type(said) is str else "")
    return names


def _said_names(tool: dict[str, Any]) -> list[str]:
    said = tool.get("type")
    names = [said] if type(said) is str and said in _NAMELESS else []
    for holder in (tool, tool.get("function"), tool.get("custom"), tool.get("toolSpec")):
        name = in_object(holder, "name")
        if type(name) is str and name not in names:
            names.append(name)
    return names
