"""CodedBody: the content coding of one body on its way through a chain of filters, undone before and done behind."""

from __future__ import annotations

from egressproxy.errors import BadRequest, GatewayError, LimitExceeded, Reason, UpstreamFault
from egressproxy.filters.base import Phase
from egressproxy.filters.content_coding import ContentDecoder, ContentEncoder, Undecodable, new_encoder
from egressproxy.model.exchange import Exchange
from egressproxy.model.message import RequestHead, ResponseHead


class CodedBody:
    """A body that nobody has changed goes on as it came, where that is known before any of it has gone: filters only
    read it (`only_reads`), or all of it is kept for one that gets it whole (`is_kept`).
    """

    __slots__ = ("_coding", "_decoder", "_encoder", "_kept", "_only_reads", "_phase", "_piece", "_tail")

    def __init__(self, coding: bytes, phase: Phase, *, is_kept: bool, only_reads: bool) -> None:
        """`coding` is one of CODINGS, or, with `only_reads`, one that `is_readable`."""
        self._coding = coding
        self._phase = phase
        self._decoder = ContentDecoder(coding)
        self._encoder: ContentEncoder | None = None
        self._only_reads = only_reads
        self._kept = bytearray() if is_kept else None
        self._piece = b""
        self._tail = b""

    def decoded(self, data: bytes, last: bool) -> bytes:
        """What this piece holds. Raises LimitExceeded (413), BadRequest (400) or UpstreamFault (502)."""
        self._piece = data
        if self._kept is not None:
            self._kept += data
        try:
            return self._decoder.decode(data, last)
        except Undecodable as error:
            if error.is_large and self._phase is Phase.REQUEST_BODY:
                message = f"the request body is too large: {error}"
                raise LimitExceeded(Reason.BODY_TOO_LARGE, message, status=413, close=True) from None
            raise undecodable(self._phase, str(error), "-") from None

    def skipped(self, data: bytes) -> bytes:
        """What goes on of a piece that holds nothing whole yet."""
        return data if self._only_reads and self._kept is None else b""

    def coded(self, data: bytes, last: bool, *, has_changed: bool) -> bytes:
        """What goes on for `data`, which the filters have returned for the last piece."""
        if self._kept is None:
            if self._only_reads:
                return self._piece
            if not data and not last:
                return b""
        elif not last:
            return b""
        elif not has_changed:
            return bytes(self._kept)
        if self._encoder is None:
            if not data and last:
                return b""  # an empty body
            self._encoder = new_encoder(self._coding)
        self._tail = data[-4:] or self._tail
        return self._encoder.encode(data, last)

    @property
    def held(self) -> int:
        """Bytes of the body as it came that are kept."""
        return len(self._kept) if self._kept is not None else 0

    @property
    def tail(self) -> bytes | None:
        """The end of what has gone on, before it was coded; None where that went on as it came: nothing fits behind."""
        return None if self._only_reads else self._tail

    def ended(self, data: bytes) -> bytes:
        """What goes on to end the body with `data` instead of what was to come. `tail` must not be None."""
        if self._encoder is None:
            self._encoder = new_encoder(self._coding)
        return self._encoder.encode(data, True)


def head_of(exchange: Exchange, phase: Phase) -> RequestHead | ResponseHead:
    return exchange.response if phase is Phase.RESPONSE_BODY else exchange.request


def undecodable(phase: Phase, why: str, rule: str, *, is_unknown: bool = False) -> GatewayError:
    """The error for a body that filters have to read and cannot. `is_unknown`: no body in this coding can be read."""
    if phase is Phase.REQUEST_BODY:
        message, status = f"the request body cannot be read: {why}", 415 if is_unknown else 400
        error: GatewayError = BadRequest(Reason.CONTENT_CODING, message, status=status)
        error.remedy = "send it without a Content-Encoding, or with one of gzip, deflate, br and zstd"
    else:
        error = UpstreamFault(Reason.BAD_RESPONSE, f"the body of the response cannot be read: {why}")
    error.rule = rule
    return error
