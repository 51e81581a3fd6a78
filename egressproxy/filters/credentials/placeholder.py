"""Placeholders: what clients hold instead of a key. One is exchanged for the key in one place, toward one backend; seen
anywhere else it tells of a client that has been tricked, and the request ends (a canary).
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from urllib.parse import unquote_to_bytes

from egressproxy.errors import Denied, Reason
from egressproxy.filters.base import FilterContext
from egressproxy.filters.credentials.config import CredentialInjectorConfig
from egressproxy.filters.credentials.credential_injector import CredentialInjector
from egressproxy.filters.credentials.placeholder_watch import misplaced, pattern_of
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import every_spelling
from egressproxy.model.message import RequestHead


class PlaceholderInjector(CredentialInjector):
    """Injects where the placeholder stands in its place. Other requests go as they are, or `require` refuses them."""

    def __init__(self, context: FilterContext) -> None:
        config: CredentialInjectorConfig = context.config
        self._placeholder = config.placeholder.encode()
        self.keeps_length = config.scrub_as == "Asterisks"  # type: ignore[misc]  # of this instance
        self._shown = b"" if self.keeps_length else self._placeholder
        super().__init__(context)
        self.asks_for_plain = False  # a request without the placeholder goes as it is
        self._anywhere = pattern_of((config.placeholder,))
        self._requires = config.require == "placeholder"
        self._is_basic = config.basic is not None
        header = config.header or "Authorization"
        #: What stands in a header with the placeholder; the scheme in any case (RFC 9110 section 11.1).
        scheme, blank, rest = config.template.partition(" ")
        self._scheme = scheme.encode().lower() if blank and "{}" in rest else b""
        self._expected = (rest if self._scheme else config.template).encode().replace(b"{}", self._placeholder)
        self._field = every_spelling((header,))
        self._where = f"the parameter {config.query}" if config.query else f"the field {header}"

    def backend_request(self, exchange: Exchange) -> object:  # type: ignore[override]
        """As CredentialInjector. Raises Denied(403): PLACEHOLDER_MISPLACED, PLACEHOLDER_REQUIRED."""
        head, search = exchange.request, self._anywhere.search
        rest = self._rest(head)
        others = b"\n".join((head.fields.block, head.path)) if rest is None else rest
        text = b"\n".join((others, exchange.upstream_host, head.via, head.upgrade))
        if search(text) or (b"%" in text and search(unquote_to_bytes(text))):
            raise misplaced(exchange, self._source, f"outside of {self._where}")
        if rest is not None:
            return super().backend_request(exchange)
        if self._requires:
            raise Denied(
                Reason.PLACEHOLDER_REQUIRED,
                f"requests to {exchange.backend} need the placeholder of filter {self._name} in {self._where}, and "
                "no other key",
                rule=self._source,
                remedy="configure the client with the placeholder instead of a key",
            )
        return None

    def _rest(self, request: RequestHead) -> bytes | None:
        """What the head says besides the placeholder in its place, to be searched; None if it is not there."""
        block, path = request.fields.block, request.path
        if self._query:
            before, _, query = path.partition(b"?")
            others = []
            found = 0
            for pair in query.split(b"&"):
                name, _, value = pair.partition(b"=")
                if unquote_to_bytes(name) == self._query and unquote_to_bytes(value) == self._placeholder:
                    found += 1
                else:
                    others.append(pair)
            return b"\n".join((block, before, *others)) if found == 1 else None
        lines = self._field.findall(block)
        if len(lines) != 1 or not self._stands_in(lines[0].partition(b":")[2].strip(b" \t")):
            return None
        return b"\n".join((block.replace(lines[0], b"", 1), path))

    def _stands_in(self, value: bytes) -> bool:
        if self._is_basic:
            scheme, _, coded = value.partition(b" ")
            try:
                pair = b64decode(coded.strip(), validate=True)
            except (Base64Error, ValueError):
                return False
            return scheme.lower() == b"basic" and pair.partition(b":")[2] == self._placeholder
        if self._scheme:
            scheme, _, value = value.partition(b" ")
            return scheme.lower() == self._scheme and value.strip() == self._expected
        return value == self._expected
