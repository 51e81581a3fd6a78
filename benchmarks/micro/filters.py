"""What each built-in filter costs a request: python benchmarks/micro/filters.py

Prints nanoseconds a run, through the compiled chain, for a request head of 12 fields (the best of seven runs).
"""

from __future__ import annotations

import json
import timeit
from collections.abc import Callable
from typing import Any

from egressproxy.filters.catalog import Catalog, FilterInstances
from egressproxy.filters.chain import Chain, compile_chain, finish, run
from egressproxy.filters.masking import Mask
from egressproxy.model.authority import Authority
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.model.secret import Secret
from egressproxy.spec.policy import ExtensionSpec

HEAD = b"\r\nHost: a.test\r\nAuthorization: Bearer client" + b"".join(b"\r\nX-Field-%d: value" % n for n in range(10))
SECRET = (("s/k", Secret(b"sk-0123456789abcdef")),)


def chain(kind: str, phase: str, **config: Any) -> Chain:
    spec = ExtensionSpec(
        "bench", f"egressproxy.io/{kind}:v1", phase, config=json.dumps(config), secrets=SECRET, scope="-"
    )  # fmt: skip
    return compile_chain([spec], FilterInstances(Catalog()).place)


def exchange() -> Exchange:
    x = Exchange("127.0.0.1:1", "a/gw", "l", 0.0)
    x.authority = Authority("a.test", 80)
    x.backend_is_secure = True
    x.request = RequestHead(b"GET", b"/v1/chat?x=1", Fields(HEAD))
    x.response = ResponseHead(200, b"OK", Fields(HEAD))
    x.path_prefix = b"/v1"
    return x


def report(label: str, call: Callable[[], object], number: int = 50_000) -> None:
    best = min(timeit.repeat(call, number=number, repeat=7))
    print(f"{label:<48} {best / number * 1e9:8.0f} ns")


def headers(label: str, made: Chain, phase: str) -> None:
    """The head is put back before every run; what that costs is the first line of the report."""
    x = exchange()
    steps = getattr(made, phase)

    def once() -> None:
        x.request.fields.block = HEAD
        x.request.path = b"/v1/chat?x=1"
        run(steps, x)
        if made.complete is not None:
            finish(made.complete, x)

    report(label, once)


def main() -> None:
    x = exchange()

    def nothing() -> None:
        x.request.fields.block = HEAD
        x.request.path = b"/v1/chat?x=1"

    report("(the measurement itself)", nothing)
    edits = {
        "set": [{"name": "X-Field-3", "value": "v"}],
        "remove": ["X-Field-4"],
        "add": [{"name": "x", "value": "y"}],
    }
    headers(
        "HeaderPolicy: set, remove, add", chain("HeaderPolicy", "request-headers", request=edits), "request_headers"
    )
    add = {"add": [{"name": "x", "value": "y"}]}
    headers("HeaderPolicy: add", chain("HeaderPolicy", "request-headers", request=add), "request_headers")
    ref = {"secretRef": {"name": "s", "key": "k"}}
    bearer = {**ref, "header": "Authorization", "template": "Bearer {}"}
    headers("CredentialInjector: header", chain("CredentialInjector", "backend-request", **bearer), "backend_request")
    query = {**ref, "query": "key"}
    headers("CredentialInjector: query", chain("CredentialInjector", "backend-request", **query), "backend_request")
    rate = chain("RequestRateLimit", "request-headers", limit=10**12, window=1)
    headers("RequestRateLimit", rate, "request_headers")
    headers(
        "ConcurrencyLimit, with its release", chain("ConcurrencyLimit", "request-headers", limit=10), "request_headers"
    )
    headers("BodyLimit", chain("BodyLimit", "request-headers", maxBytes=10), "request_headers")
    path = {"type": "ReplacePrefixMatch", "value": "/x"}
    headers(
        "UrlRewrite: host and prefix",
        chain("UrlRewrite", "request-headers", hostname="b", path=path),
        "request_headers",
    )
    headers("RequestRedirect", chain("RequestRedirect", "request-headers", scheme="https"), "request_headers")
    mask = Mask(Secret(b"sk-0123456789abcdef"))
    event = b'data: {"choices": [{"delta": {"content": "word"}}]}\n\n'
    page = b"the quick brown fox jumps over the lazy dog\n" * 1490
    report("scrubbing: an event of 53 octets", lambda: mask.feed(b"", event, False), 20_000)
    report("scrubbing: a piece of 64 KiB", lambda: mask.feed(b"", page, False), 100)


if __name__ == "__main__":
    main()
