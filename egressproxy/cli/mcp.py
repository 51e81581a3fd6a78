"""`egressproxy mcp pins`: the pins of an MCP server's tools, or of those that a gateway has learned, for a manifest."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from egressproxy.cli.options import output_option

if TYPE_CHECKING:
    from http.client import HTTPResponse

#: The revision that is spoken; a server may answer in an older one.
_VERSION: Final = "2025-06-18"
_TIMEOUT_S: Final = 30.0
#: Bytes of one answer, and pages of a list.
_MAX_ANSWER: Final = 64 * 1024 * 1024
_MAX_PAGES: Final = 1000
#: What to do about a status.
_REMEDIES: Final = {
    401: ': show a token: --header "Authorization: Bearer TOKEN"',
    404: ": add the path of the endpoint, such as /mcp",
}


@click.group("mcp")
def command() -> None:
    """Show the tools of MCP servers as the filters of a gateway see them.

    \b
    Examples:
      egressproxy mcp pins http://127.0.0.1:8000/mcp
      egressproxy mcp pins /var/lib/egressproxy/pins.json
    """


@command.command("pins", short_help="Print the pins of tools for a manifest.")
@click.argument("source", metavar="URL|FILE")
@click.option("--header", "headers", metavar="NAME:VALUE", multiple=True, help="A field of each request to the URL.")
@click.option("--backend", metavar="NS/NAME", default="", help="The backend of whose tools FILE is asked.")
@output_option
def pins(source: str, headers: tuple[str, ...], backend: str, output: str) -> None:
    """Print name, hash and description of each tool, as a ToolPins filter has them in `tools`.

    They are of the server at URL (streamable HTTP), or of FILE, the learnFile of a ToolPins filter. Read the
    descriptions before you pin them. Characters that nobody sees, and phrases of prompt injection, are told.

    \b
    Examples:
      egressproxy mcp pins https://tools.corp.example/mcp --header "Authorization: Bearer $TOKEN"
      egressproxy mcp pins /var/lib/egressproxy/pins.json --backend agents/tools

    Exit status: 0, 1 if a tool is suspicious, 2 for wrong usage or no list.
    """
    from egressproxy.ai.content.injection_phrases import InjectionPhrases
    from egressproxy.ai.filters.tool_pins import MAX_KEPT, Definition
    from egressproxy.model.work import at_once

    is_url = source.startswith(("http://", "https://"))
    made: list[dict[str, str]] = []
    phrases, status = InjectionPhrases(), 0
    for tool, known in _listed(source, _fields(headers)) if is_url else _learned(source, backend):
        definition = Definition.of(tool)
        pin = {"name": definition.name, "hash": known or definition.hash}
        description = tool.get("description")
        if isinstance(description, str) and len(description) <= MAX_KEPT:
            pin["description"] = description
        made.append(pin)
        hidden = at_once(definition.finding_hidden())
        phrase = at_once(definition.finding_phrase(phrases))
        for what in (hidden and f"the invisible character {hidden}", phrase and f"a phrase of {phrase}"):
            if what:
                click.echo(f"egressproxy: tool {definition.name!a} has {what}", err=True)
                status = 1
    if output == "json":
        click.echo(json.dumps({"tools": made}, indent=2))
    else:
        click.echo("tools:" if made else "tools: []")
        for pin in made:
            for number, (name, value) in enumerate(pin.items()):
                click.echo(f"{'  ' if number else '- '}{name}: {json.dumps(value)}")
    sys.exit(status)


def _fields(headers: tuple[str, ...]) -> dict[str, str]:
    fields = {}
    for header in headers:
        name, colon, value = header.partition(":")
        if not colon or not name.strip():
            raise click.UsageError("a --header is written NAME:VALUE")
        fields[name.strip()] = value.strip()
    return fields


def _learned(file: str, backend: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The definitions in a file of learned pins, each with its hash."""
    from egressproxy.ai.filters.tool_pins import LearnedPins

    learned = LearnedPins(file)
    try:
        with open(file, "rb"):
            learned.read()
    except OSError as error:
        _fail(f"{file} cannot be read: {error.strerror or error}")
    except (ValueError, RecursionError):
        _fail(f"{file} cannot be read: it is no file of learned pins (learnFile of a ToolPins filter)")
    known = learned.backends()
    if not backend and len(known) != 1:
        raise click.UsageError(f"say which backend: --backend {' or '.join(known) if known else '(the file has none)'}")
    if backend and backend not in known:
        raise click.UsageError(f"the file has no backend {backend}, but {', '.join(known) or 'none'}")
    for name, tool in sorted(learned.tools(backend or known[0]).items()):
        definition = tool.get("definition")
        yield {**(definition if isinstance(definition, dict) else {}), "name": name}, tool["hash"]


# --- a server --------------------------------------------------------------------------------------------------------
def _listed(url: str, fields: dict[str, str]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Each tool that the server lists, and "". Exits with 2 where it lists none."""
    client = {"name": "egressproxy", "version": "1"}
    asked = {"protocolVersion": _VERSION, "capabilities": {}, "clientInfo": client}
    fields = {**fields, "Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    found, session = _call(url, fields, "initialize", asked, 1)
    if session:
        fields["Mcp-Session-Id"] = session
    fields["MCP-Protocol-Version"] = str(found.get("protocolVersion", _VERSION))
    _send(url, fields, {"jsonrpc": "2.0", "method": "notifications/initialized"}).close()
    cursor: dict[str, Any] = {}
    for page in range(_MAX_PAGES):
        found, _ = _call(url, fields, "tools/list", cursor, page + 2)
        tools = found.get("tools")
        if not isinstance(tools, list) or not all(isinstance(each, dict) for each in tools):
            _fail(f"{url} answers tools/list with no list of tools")
        for tool in tools:
            if not isinstance(tool.get("name"), str):
                _fail(f"{url} lists a tool without a name")
            yield tool, ""
        if not found.get("nextCursor"):
            return
        cursor = {"cursor": found["nextCursor"]}
    _fail(f"{url} lists tools on more than {_MAX_PAGES} pages")


def _call(
    url: str, fields: Mapping[str, str], method: str, params: Mapping[str, Any], number: int
) -> tuple[dict[str, Any], str]:
    """The result of a request, and the id of the session."""
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    with _send(url, fields, message) as answer:
        try:
            for said in _messages(answer):
                if said.get("id") == number and isinstance(said.get("result"), dict):
                    return said["result"], answer.headers.get("Mcp-Session-Id", "")
                if said.get("id") == number:
                    _fail(f"{url} refuses {method}: {ascii(json.dumps(said.get('error')))[:500]}")
        except (OSError, HTTPException) as error:
            _fail(f"{url}: the answer to {method} cannot be read: {_why(error)}")
        except (ValueError, RecursionError) as error:
            what = str(error) if isinstance(error, _TooLong) else "it is no JSON"
            _fail(f"{url}: the answer to {method} cannot be read: {what}")
    _fail(f"{url} does not answer {method}")


class _TooLong(ValueError):
    """An answer of too many bytes."""


def _messages(answer: HTTPResponse) -> Iterator[dict[str, Any]]:
    """The messages of an answer of JSON or of events. Raises OSError, HTTPException, ValueError, RecursionError."""
    if answer.headers.get_content_type() != "text/event-stream":
        data = answer.read(_MAX_ANSWER + 1)
        if len(data) > _MAX_ANSWER:
            raise _TooLong(f"it is longer than {_MAX_ANSWER} bytes")
        found = json.loads(data)
        yield from (each for each in (found if isinstance(found, list) else [found]) if isinstance(each, dict))
        return
    lines: list[bytes] = []
    left = _MAX_ANSWER
    while left > 0 and (line := answer.readline(left)):
        left -= len(line)
        line = line.rstrip(b"\r\n")
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
        elif not line and lines:
            found = json.loads(b"\n".join(lines))
            lines.clear()
            if isinstance(found, dict):
                yield found


def _send(url: str, fields: Mapping[str, str], message: Mapping[str, Any]) -> HTTPResponse:
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class Stay(HTTPRedirectHandler):
        """A redirect would take the fields, such as a credential, to another server."""

        def redirect_request(self, *_arguments: Any) -> None:
            return None

    data = json.dumps(message).encode()
    request = Request(url, data, dict(fields), method="POST")  # noqa: S310 # `pins` has looked at the scheme
    try:
        answer: HTTPResponse = build_opener(Stay).open(request, timeout=_TIMEOUT_S)
        return answer
    except HTTPError as error:
        with error:
            remedy = _REMEDIES.get(error.code, "")
            _fail(f"{url} answers {error.code} {ascii(error.reason)[1:-1]}{remedy}")  # it may have codes for a terminal
    except (OSError, HTTPException) as error:
        _fail(f"{url} does not answer: {_why(error)}")
    except ValueError:  # its text has the value, which may be a credential
        _fail(f"{url} cannot be asked: the URL, or a --header, has a character that none may have")


def _why(error: Exception) -> str:
    """What has failed, without the classes and numbers of Python."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return "what it says is no HTTP, or is cut off" if isinstance(error, HTTPException) else str(reason)


def _fail(message: str) -> NoReturn:
    click.echo(f"egressproxy: {message}", err=True)
    sys.exit(2)
