"""A Python filter that sees heads and trailers, for gateways, and for filters of an Envoy."""

from __future__ import annotations

_TEXT = """
from egressproxy.filters import Filter, Rejected


class Trails(Filter):
    def request_headers(self, x):
        self.seen(x.request)

    def response_headers(self, x):
        self.seen(x.response)

    def seen(self, head):
        {on_head}

    def request_trailers(self, x, fields):
        if b"x-bad" in fields:
            raise Rejected("not so late", status=422)
        fields.remove(b"x-drop")
        fields.set(b"x-seen", b"request")

    async def response_trailers(self, x, fields):
        fields.remove(b"x-drop")
        fields.set(b"x-seen", b"response")
"""


def trailing_filter(on_head: str = "pass") -> str:
    """Its file. It refuses `x-bad`, takes `x-drop` out and sets `x-seen`; of each `head` it does `on_head`."""
    return _TEXT.format(on_head=on_head)
