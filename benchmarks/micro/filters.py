"""Each built-in filter, through the compiled chain, for a request head of 12 fields."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.micro.stage import Stage
from egressproxy.doors.catalog import Catalog
from egressproxy.filters.chain import Chain, compile_chain, finish, run
from egressproxy.filters.instances import FilterInstances
from egressproxy.filters.masking import Mask
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.authority import Authority
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.model.secret import SecretBytes

GROUP = "filters"
HEAD = b"\r\nHost: a.test\r\nAuthorization: Bearer client" + b"".join(b"\r\nX-Field-%d: value" % n for n in range(10))
PATH = b"/v1/chat?x=1"
REFERENCE = {"secretRef": {"name": "s", "key": "k"}}
SECRET = (("s/k", SecretBytes(b"sk-0123456789abcdef")),)
OWN_FILTER = """
from egressproxy.filters import *

class Own(Filter):
    def request_headers(self, x):
        if x.request.fields.get(b"x-field-3") != b"value":
            raise Reject(403, "no")
"""


def stages() -> Iterator[Stage]:
    edits = {
        "set": [{"name": "X-Field-3", "value": "v"}],
        "remove": ["X-Field-4"],
        "add": [{"name": "x", "value": "y"}],
    }
    add = {"add": [{"name": "x", "value": "y"}]}
    prefix = {"type": "ReplacePrefixMatch", "value": "/x"}
    bearer: dict[str, Any] = {**REFERENCE, "header": "Authorization", "template": "Bearer {}"}
    yield placed("HeaderPolicy: set, remove, add", "HeaderPolicy", request=edits)
    yield placed("HeaderPolicy: add", "HeaderPolicy", request=add)
    yield placed("HeaderPolicy: response, set, remove, add", "HeaderPolicy", "response-headers", response=edits)
    yield placed("CredentialInjector: header", "CredentialInjector", "backend-request", **bearer)
    yield placed(
        "CredentialInjector: query",
        "CredentialInjector",
        "backend-request",
        query="key",
        secretRef=REFERENCE["secretRef"],
    )
    yield placed("RequestRateLimit", "RequestRateLimit", limit=10**12, window=1)
    yield placed("QoSController", "QoSController", requestsPerSecond=10**12)
    yield placed("ConcurrencyLimit, with its release", "ConcurrencyLimit", limit=10)
    yield placed("BodyLimit", "BodyLimit", maxBytes=10)
    yield placed("UrlRewrite: host and prefix", "UrlRewrite", hostname="b", path=prefix)
    yield placed("Cors: no preflight", "Cors", allowOrigins=["https://app.test"], allowMethods=["GET"])
    yield placed("CanaryKeys: one key in the head", "CanaryKeys", secretRefs=[REFERENCE["secretRef"]])
    yield placed(
        "McpAuthorization: PassThrough, a request that is none for metadata",
        "McpAuthorization",
        "backend-request",
        mode="PassThrough",
        resource="https://a.test/mcp",
    )
    pins = [{"name": "a", "hash": "sha256:" + 64 * "0"}]
    yield placed("ToolPins: a request that is none of MCP", "ToolPins", "backend-request", tools=pins)
    yield placed("DirectResponse", "DirectResponse", statusCode=410)
    yield placed("RequestRedirect", "RequestRedirect", scheme="https")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "own.py").write_text(OWN_FILTER)
        yield placed("Python: a filter that reads one field", "Python", folder=folder, path="own.py")
    mask = Mask(SecretBytes(b"sk-0123456789abcdef"))
    event = b'data: {"choices": [{"delta": {"content": "word"}}]}\n\n'
    page = b"the quick brown fox jumps over the lazy dog\n" * 1490
    yield Stage(GROUP, "scrubbing of an event of 53 bytes", lambda: mask.feed(b"", event, False))
    yield Stage(GROUP, "scrubbing of a piece of 64 KiB", lambda: mask.feed(b"", page, False))


def placed(name: str, kind: str, phase: str = "request-headers", folder: str = "", **config: Any) -> Stage:
    """One filter, with what it does at the end of the exchange. The head is put back each time: that is not counted."""
    made = chain(kind, phase, folder, config)
    x = exchange()
    steps = getattr(made, phase.replace("-", "_"))
    reset = resetting(x)

    def once() -> None:
        reset()
        run(steps, x)
        if made.complete is not None:
            finish(made.complete, x)

    return Stage(GROUP, name, once, reset)


def chain(kind: str, phase: str, folder: str, config: dict[str, Any]) -> Chain:
    spec = ExtensionIR(
        "bench", f"egressproxy.io/{kind}:v1", phase,
        config=json.dumps(config), secrets=SECRET, scope="-", folder=folder,
    )  # fmt: skip
    return compile_chain([spec], FilterInstances(Catalog()).place)


def exchange() -> Exchange:
    x = Exchange("127.0.0.1:1", "a/gw", "l", 0.0)
    x.authority = Authority("a.test", 80)
    x.backend_is_secure = True
    x.request = RequestHead(b"GET", PATH, Fields(HEAD))
    x.response = ResponseHead(200, b"OK", Fields(HEAD))
    x.path_prefix = b"/v1"
    return x


def resetting(x: Exchange) -> Callable[[], None]:
    """Puts the heads back as they came."""

    def reset() -> None:
        x.request.fields.block = HEAD
        x.response.fields.block = HEAD
        x.request.path = PATH

    return reset
