"""A filter that lets GraphQL queries pass, and refuses mutations and subscriptions. docs/recipes.md places it."""

import json
import re

from egressproxy.filters import BodyMode, Exchange, Filter, Phase, Rejected

#: A token of a GraphQL document: strings and comments are one each, so that nothing in them counts.
TOKEN = re.compile(
    r'"""(?:\\"""|.)*?"""|"(?:\\.|[^"\\\n])*"|#[^\n\r]*|[{}()]|[_A-Za-z][_0-9A-Za-z]*|["]|[^\s]', re.DOTALL
)
#: The first token of each definition that may pass (GraphQL, October 2021, section 2.2).
READS = frozenset(("{", "query", "fragment"))
#: Other members may name a stored document, which the server would run in place of this one.
MEMBERS = frozenset(("query", "variables", "operationName", "extensions"))
#: Servers read forms, too, and text in other charsets: JSON may say something else there.
JSON = re.compile(rb'application/json[ \t]*(?:;[ \t]*charset="?utf-8"?[ \t]*)?', re.IGNORECASE)


def refused_definition(document: str) -> str:
    """The first token of the first definition that is no query and no fragment; "" if there is none."""
    braces = parentheses = 0
    begins = True
    for match in TOKEN.finditer(document):
        token = match.group()
        if token[0] == "#" or token in ("\ufeff", ","):
            continue
        if token == '"':
            return "a string that does not end"
        if begins:
            if token not in READS:
                return token
            begins = False
        if token == "(":
            parentheses += 1
        elif token == ")":
            parentheses -= 1
        elif not parentheses and token == "{":
            braces += 1
        elif not parentheses and token == "}":
            braces -= 1
            begins = braces == 0
    return "" if begins and not braces else "a document that does not end"


def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object of JSON. A name that stands twice, or in another case, is read otherwise by other parsers."""
    found = dict(pairs)
    if len({name.lower() for name in found}) < len(pairs):
        raise Rejected("a name stands twice in the JSON", status=400)
    return found


def document_of(asked: object) -> str:
    """The document of a request."""
    if isinstance(asked, dict) and asked.keys() <= MEMBERS:
        document, more = asked.get("query"), asked.get("extensions") or {}
        if isinstance(document, str) and document.strip() and isinstance(more, dict) and "persistedQuery" not in more:
            return document
    raise Rejected("the request has no query alone: send the document itself, and not the hash of one")


class GraphqlQueries(Filter):
    # It is placed once, in request-headers, and runs for the body as well.
    runs_in = frozenset((Phase.REQUEST_HEADERS, Phase.REQUEST_BODY))
    body_mode = BodyMode.BUFFER
    only_reads = True
    decodes = True
    max_buffer_bytes = 128 * 1024

    def request_headers(self, x: Exchange) -> None:
        if b"?" in x.request.path or x.request.body == 0:
            raise Rejected("send the query in the body, as JSON")
        fields = x.request.fields
        kinds = fields.get_all(b"content-type") + fields.get_all(b"content_type")  # WSGI joins them
        if len(kinds) != 1 or not JSON.fullmatch(kinds[0]):
            raise Rejected("send the query as application/json, in UTF-8", status=415)

    def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        try:
            asked = json.loads(data.decode("utf-8"), object_pairs_hook=members)
        except (ValueError, RecursionError):
            raise Rejected("the body is no JSON", status=400) from None
        for each in (asked or [None]) if isinstance(asked, list) else [asked]:
            found = refused_definition(document_of(each))
            if found:
                raise Rejected(f"only queries are allowed, and the document has {found[:40]!r}")
        return data
