"""`egressproxy filters new`: a filter to begin with, its manifest and its test."""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from string import Template
from typing import Final

import click
import yaml

_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")

_CODE: Final = '''\
"""A filter: $ABOUT. Made by `egressproxy filters new`."""

from pydantic import BaseModel, ConfigDict

from egressproxy.filters import $USED


class Config(BaseModel):
    """`config` in the manifest."""

    model_config = ConfigDict(extra="forbid")

    $SETTING


class $CLASS(Filter):
${FIRST}    def __init__(self, context: FilterContext) -> None:
        self.config: Config = context.config

'''
_HEADERS: Final = """\
    def request_headers(self, x: Exchange) -> None:
        if b"x-forbidden" in x.request.fields:
            raise Rejected("X-Forbidden is not allowed", remedy="leave it out")
        x.request.fields.set(b"x-team", self.config.team.encode())  # fields are bytes
"""
_HEADERS_TEST: Final = """\
def test_the_server_is_told_the_team():
    result = harness(team="data").run(exchange("GET", "http://example.com/", {"X-Team": "forged"}))
    assert result.request.fields.get_all(b"x-team") == [b"data"]
"""
_BUFFER: Final = """\
    def body_mode_for(self, x: Exchange, phase: Phase) -> BodyMode | None:
        # BUFFER: `request_body` is called once, with the whole body. None: the body passes unread.
        is_json = (x.request.fields.get(b"content-type") or b"").lower().startswith(b"application/json")
        return BodyMode.BUFFER if is_json else None

    def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        body = json(x, data)  # refuses what is no JSON (400)
        asked = body.get("max_tokens")
        if isinstance(body.value, dict) and not (isinstance(asked, int) and asked <= self.config.most):
            body["max_tokens"] = self.config.most
        return bytes(body)  # the rest goes on byte for byte
"""
_BUFFER_TEST: Final = """\
def ask(body, **config):
    x = exchange("POST", "http://example.com/v1", {"Content-Type": "Application/JSON"})
    return harness(**config).run(x, request_body=body)


def test_a_request_gets_no_more_than_the_most():
    asked = ask([b'{"model": "m", ', b'"max_tokens": 9000}'], most=100)
    assert asked.request_body == b'{"model": "m", "max_tokens": 100}'


def test_what_is_no_json_is_refused():
    assert ask(b"{").status == 400
"""
_STREAM: Final = """\
    def body_mode_for(self, x: Exchange, phase: Phase) -> BodyMode | None:
        # STREAM: `response_body` is called for each piece, as it comes. None: the body passes unread.
        is_stream = (x.response.fields.get(b"content-type") or b"").lower().startswith(b"text/event-stream")
        return BodyMode.STREAM if is_stream else None

    def response_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        events = sse(self, x, data, last)  # those that are complete; the rest waits for the next piece
        for event in events:
            event.data = event.data.replace(self.config.word, "****")
        return b"".join(map(bytes, events))
"""
_STREAM_TEST: Final = """\
def test_a_word_is_masked_wherever_the_pieces_are_cut():
    x, head = exchange("GET", "http://example.com/"), response(200, {"Content-Type": "text/event-stream"})
    result = harness().run(x, response=head, response_body=[b"data: a sec", b"ret\\n\\nda", b"ta: none\\n\\n"])
    assert result.response_pieces == (b"", b"data: a ****\\n\\n", b"data: none\\n\\n")
"""
#: Of a filter that reads bodies.
_DECODES: Final = "    decodes = True  # a body in gzip is decoded before, and encoded again behind this filter\n\n"
#: By --body: the filter, its test, and what else differs in the files, in the order of _DIFFERING.
_KINDS: Final = {
    "none": (
        _HEADERS, _HEADERS_TEST, "", "tells the server which team a request is of", "request-headers", "exchange",
        "Exchange, Filter, FilterContext, Rejected", 'team: str = "research"', "team: research",
    ),
    "buffer": (
        _BUFFER, _BUFFER_TEST, _DECODES, "bounds `max_tokens` of requests in JSON", "request-body", "exchange",
        "BodyMode, Exchange, Filter, FilterContext, Phase, json", "most: int = 4096", "most: 4096",
    ),
    "stream": (
        _STREAM, _STREAM_TEST, _DECODES, "masks a word in server-sent events", "response-body", "exchange, response",
        "BodyMode, Exchange, Filter, FilterContext, Phase, sse", 'word: str = "secret"', "word: secret",
    ),
}  # fmt: skip
_DIFFERING: Final = ("FIRST", "ABOUT", "PHASE", "TOOLS", "USED", "SETTING", "CONFIG")
_GATEWAY: Final = """\
# A gateway for this machine, and a policy that runs the filter ${NAME} on every request. If your configuration has a
# Gateway, take the first object out, and name that Gateway in `targetRefs`.
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: egress, namespace: agents}
spec:
  gatewayClassName: egressproxy
  listeners:
  - {name: forward, port: 3128, protocol: egressproxy.io/forward-proxy}
---
"""
_MANIFEST: Final = """\
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: ${NAME}, namespace: ${NAMESPACE}}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: ${TARGET}}]
${ALLOW}  extensions:
  - name: ${NAME}
    type: egressproxy.io/Python:v1
    phase: ${PHASE}
    config:
      path: ${MODULE}.py
      config: {${CONFIG}}
"""
_TEST: Final = '''\
"""The filter ${NAME} without a network: built and run as the gateway does it."""

from pathlib import Path

from egressproxy.filters.testing import FilterHarness, $TOOLS


def harness(**config) -> FilterHarness:
    given = {"path": "${MODULE}.py", "config": config}
    return FilterHarness(given, phase="${PHASE}", name="${NAME}", folder=Path(__file__).parent)


'''


@click.command("new", short_help="Write a filter of your own, its manifest and its test.")
@click.argument("name", metavar="NAME")
@click.option(
    "--body", type=click.Choice(tuple(_KINDS)), default="none", show_default=True,
    help="What it shows: a filter of heads, one that gets the body of a request whole (buffer), or one that gets a"
    " response piece by piece (stream).",
)  # fmt: skip
@click.option(
    "--dir", "folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Where the files are written; made if it is not there. Default: a folder NAME.",
)  # fmt: skip
def new(name: str, body: str, folder: Path | None) -> None:
    """Write a filter of your own, its manifest and its test, which work as they are. No file is overwritten. If DIR
    has a manifest with a Gateway, the filter is for that Gateway.

    NAME has lower-case letters, digits and hyphens.

    \b
    Examples:
      egressproxy filters new team-header
      egressproxy filters new max-tokens --body buffer
      egressproxy filters new mask --body stream --dir policies/
    """
    if not _NAME.fullmatch(name):
        raise click.BadParameter(
            f"{name!r}: write lower-case letters, digits and hyphens, a letter first, such as max-tokens",
            param_hint="NAME",
        )
    module = name.replace("-", "_")
    if find_spec(module) is not None:
        raise click.BadParameter(f"Python has a module {module}: give the filter another NAME", param_hint="NAME")
    folder = Path(name) if folder is None else folder
    code, test, *differing = _KINDS[body]
    made = "".join(word.capitalize() for word in name.split("-"))
    gateway = _gateway_in(folder)
    namespace, target = gateway or ("agents", "egress")
    replaced = dict(
        zip(_DIFFERING, differing, strict=True), NAME=name, MODULE=module, CLASS=f"{made}Filter", NAMESPACE=namespace,
        TARGET=target, ALLOW="" if gateway else "  destinations: {allow: [{hostnames: [example.com]}]}\n",
    )  # fmt: skip
    manifest = _MANIFEST if gateway else _GATEWAY + _MANIFEST
    texts = {f"{module}.py": _CODE + code, f"{name}.yaml": manifest, f"test_{module}.py": _TEST + test}
    files = {folder / file: Template(text).substitute(replaced) for file, text in texts.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if taken := [str(path) for path in files if os.path.lexists(path)]:
            raise click.ClickException(f"{', '.join(taken)} is there already: give another NAME, or --dir")
        for path, text in files.items():
            path.write_text(text, "utf-8")
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from None
    filter_file, manifest, test = map(str, files)
    at = quote(str(folder))
    tried = "" if gateway else "  curl -x http://127.0.0.1:3128 http://example.com/\n"
    click.echo(
        f"written: {filter_file}, {manifest}, {test}\n\n"
        "Next:\n"
        f"  {quote(sys.executable)} -m pytest {at}    # the test; `pip install pytest` if it is not there\n"
        f"  egressproxy check {at}\n"
        f"  egressproxy run --config {at} --debug-filters    # a changed file is reloaded\n"
        f"{tried}"
        "What a filter may do: docs/filter-api.md"
    )


def _gateway_in(folder: Path) -> tuple[str, str] | None:
    """Namespace and name of the first Gateway in the manifests of this folder; None without one that can be read."""
    for path in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
        try:
            for found in yaml.safe_load_all(path.read_text("utf-8")):
                if isinstance(found, dict) and found.get("kind") == "Gateway":
                    return found["metadata"].get("namespace", "default"), found["metadata"]["name"]
        except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError):
            continue
    return None
