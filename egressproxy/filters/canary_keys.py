"""CanaryKeys: worthless keys, planted where no client has a reason to take them, that reveal a client which uses one.

The request is denied, and an Event names the client and the key. Heads, targets and bodies are searched as they are and
as tools encode them (`readings`), for the key itself, in base64 at every alignment, and in hexadecimal. Bodies are
searched as they flow: bytes from before the end of the key have been sent, which a worthless key permits. A client that
hides a key on purpose is not detected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import unquote_to_bytes

from egressproxy.errors import Denied, GatewayFault, Reason
from egressproxy.filters.base import Filter, FilterContext, FilterType, Phase, UnusableReference
from egressproxy.filters.credentials.placeholder_watch import forms_of
from egressproxy.filters.settings import FilterConfig, SecretRef, Within
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.fields import Fields

#: The least bytes of a key: a shorter one would match by chance.
MIN_KEY: Final = 16
MAX_KEY: Final = 1024
#: The most bytes in which a byte of a key is written: hexadecimal, with a JSON escape for each digit and line breaks.
_WIDEST: Final = 14


@dataclass(frozen=True, slots=True)
class CanaryKeysConfig(FilterConfig):
    """The keys."""

    secret_refs: Annotated[tuple[SecretRef, ...], Within(min_length=1, max_length=256)]
    """Secrets with one key each, of 16 to 1,024 characters of ASCII, that no server takes."""


class CanaryKeys(Filter):
    """Searches the head, the body and the trailers of requests, and changes nothing."""

    only_reads = True
    decodes = True
    ignores_trailers = True

    def __init__(self, context: FilterContext) -> None:
        config: CanaryKeysConfig = context.config
        self._source = context.source
        self._tail: StateSlot[bytes] = StateSlot("canary")
        self._notices = context.notices
        self._used = context.meter.counter("egress_canary_keys_used", "Requests that had a canary key.", ("key",))
        self._forms: list[tuple[str, bytes]] = []  # with the label of its Secret
        self._longest = 0
        self._missing = ""
        for ref in config.secret_refs:
            secret = context.secrets.get(ref.label)
            if secret is None:
                self._missing = ref.label
                continue
            value = secret.reveal().strip()
            if not MIN_KEY <= len(value) <= MAX_KEY or not value.isascii():
                message = f"a canary key has to have {MIN_KEY} to {MAX_KEY} characters of ASCII: of a file take a line"
                raise UnusableReference(message, ref)
            label, number, text = ref.label.removesuffix("/"), value.hex(), value.decode("ascii")
            in_utf_16 = forms_of("\0".join(text))  # either byte order; PowerShell encodes such text
            forms = {*forms_of(text), *in_utf_16, number.encode(), number.upper().encode()}
            self._forms += [(label, form) for form in sorted(forms)]
            self._longest = max(self._longest, len(value) * _WIDEST)
        #: Host names, and field names in HTTP/2, are in lower case.
        self._lowered = [(label, form.lower()) for label, form in self._forms]

    def request_headers(self, exchange: Exchange) -> None:
        """Raises Denied (403), and GatewayFault for a missing Secret: a detector without its key must not pass."""
        if self._missing:
            message = f"the canary key {self._missing} is missing"
            remedy = f"create the Secret and entry {self._missing}, or take it out of secretRefs"
            raise GatewayFault(Reason.CREDENTIAL_MISSING, message, rule=self._source, remedy=remedy)
        head = exchange.request
        parts = head.fields.block, head.path, head.method, head.upgrade, head.via, str(exchange.authority).encode()
        self._look(exchange, map(bytes.lower, readings(b" ".join(parts))), self._lowered)

    def request_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes:
        """Raises Denied (403)."""
        text = (exchange.state.get(self._tail) or b"") + data
        self._look(exchange, readings(text), self._forms)
        if not last:
            exchange.keep(self._tail, text[-self._longest :])
        return data

    def request_trailers(self, exchange: Exchange, fields: Fields) -> None:
        """Raises Denied (403)."""
        self._look(exchange, map(bytes.lower, readings(fields.block)), self._lowered)

    def _look(self, exchange: Exchange, texts: Iterable[bytes], forms: list[tuple[str, bytes]]) -> None:
        for text in texts:
            for label, form in forms:
                if form in text:
                    self._found(exchange, label)

    def _found(self, exchange: Exchange, label: str) -> None:
        who = exchange.identity.name if exchange.identity.name != "-" else "a client that is not known"
        self._used.add(1, label)
        self._notices.warning("CanaryKeyUsed", f"{who} has used the canary key {label}: find out how it came by it")
        exchange.add_log_fields({"canary": label})
        raise Denied(Reason.CANARY_KEY, "the request has a key that nobody may use", rule=self._source, detail=label)


def readings(text: bytes) -> Iterator[bytes]:
    """The text as it is, and decoded: from a URL (once or twice), from JSON, from UTF-16, and without the line breaks
    of `base64` and `xxd`.
    """
    yield text
    for _ in range(2):
        if b"%" in text:
            text = unquote_to_bytes(text)
            yield text
    if b"\\" in text:
        text = text.replace(b"\\/", b"/").replace(b"\\r", b"").replace(b"\\n", b"\n")
        text = unquote_to_bytes(text.replace(b"\\u00", b"%"))
        yield text
    if b"\0" in text:
        text = text.replace(b"\0", b"")
        yield text
    if b"\n" in text:
        yield text.translate(None, b"\r\n")


CANARY_KEYS: Final = FilterType(
    name="egressproxy.io/CanaryKeys:v1",
    phases=frozenset((Phase.REQUEST_HEADERS,)),
    config_model=CanaryKeysConfig,
    build=CanaryKeys,
    also=frozenset((Phase.REQUEST_BODY,)),
    summary="Denies requests that have one of these keys, which open nothing, and tells of them in an Event.",
)
