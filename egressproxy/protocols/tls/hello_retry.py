"""HelloRetry: a TLS handshake behind its first ClientHello, until no server reads a second one. Pure.

A server that answers with HelloRetryRequest goes on with the ClientHello that follows, and serves the name in that one
(RFC 8446 section 4.1.4). A client may provoke it (an empty key_share), and may send its second hello without waiting.
So what a client says is held to the first name until its server has answered with a ServerHello, or until the second
hello was read. The client's records alone do not tell: behind early data, which such a server skips, a hello may still
follow (section 4.2.10).

A hello within a session (renegotiation, TLS 1.2) is encrypted and seen by nobody but its server.
"""

from __future__ import annotations

from egressproxy.protocols.tls.client_hello import (
    CONTENT_TYPES,
    RECORD_HEAD,
    BadClientHello,
    ClientHello,
    ClientHelloReader,
)

_HANDSHAKE, _SERVER_HELLO = 22, 2
#: The random of a ServerHello that is a HelloRetryRequest (RFC 8446 section 4.1.3).
_RETRY = bytes.fromhex("CF21AD74E59A6111BE1D8C021E65B891C2A211167ABB8C5E079E09E2C8A8339C")
#: Type, length and version of a ServerHello stand before its random.
_RANDOM = slice(6, 38)
#: A record of TLS 1.2 may be so much longer than its content (RFC 5246 section 6.2.3).
_MAX_RECORD = 16384 + 2048
#: What is kept of a server that says something else, or next to nothing at a time.
_MAX_ANSWER = 4096
#: What is encrypted under TLS 1.3 has a type and a tag at least (RFC 8446 section 5.2). Records with less are there to
#: keep us busy, but for a few: a change of ciphers, an alert.
_LEAST_ENCRYPTED = 17
_MAX_TINY_RECORDS = 256


class HelloRetry:
    """`is_over`: the handshake is past every ClientHello, and nothing needs to be looked at any more. `held`: an
    unfinished record or hello of the client, which may not go on yet.
    """

    __slots__ = (
        "_answer", "_heard", "_hears_server", "_message", "_read", "_reader", "_tiny_records", "held", "is_over",
        "second",
    )  # fmt: skip

    def __init__(self, first_size: int = 0) -> None:
        """`first_size`: so many bytes of the client are still those of its first hello."""
        self.is_over = False
        self.held = b""
        self.second: ClientHello | None = None
        self._answer = b""  # of the server, while it is not known what it says: a record that is not whole
        self._message = b""  # of whole records
        self._heard = 0  # bytes in whole records
        self._hears_server = True
        self._reader: ClientHelloReader | None = None
        self._read = first_size  # so much of what is held, or comes, was read
        self._tiny_records = 0

    def from_client(self, data: bytes) -> bytes:
        """Take what the client said; returns what may go on to the server, first what was held. If `second` is set
        then, the caller judges it before it sends that. Raises BadClientHello.
        """
        held = self.held + data if self.held else data
        size = len(held)
        at = passed = self._read
        if self._reader is not None:
            passed = 0
        while at < size:
            if held[at] not in CONTENT_TYPES:  # no server reads a hello behind that
                return self._end(held)
            stop = at + RECORD_HEAD
            if stop > size:
                break
            stop += int.from_bytes(held[at + 3 : stop], "big")
            if stop - at > RECORD_HEAD + _MAX_RECORD:
                raise BadClientHello("a record behind the ClientHello is too large")
            if stop > size:
                break
            if held[at] == _HANDSHAKE or self._reader is not None:
                if self._reader is None:
                    self._reader = ClientHelloReader()
                self.second = self._reader.feed(held[at:stop])
                if self.second is not None:
                    return self._end(held)
            else:
                if stop - at < RECORD_HEAD + _LEAST_ENCRYPTED:
                    self._tiny_records += 1
                    if self._tiny_records > _MAX_TINY_RECORDS:
                        raise BadClientHello(f"more than {_MAX_TINY_RECORDS} tiny records behind the ClientHello")
                passed = stop  # early data, a change of ciphers for old middleboxes, an alert
            at = stop
        self.held = held[passed:]
        self._read = at - passed
        return held[:passed]

    def from_server(self, data: bytes) -> None:
        """Look for the ServerHello in what the server answers. The caller sends the bytes on in any case."""
        if not self._hears_server:
            return
        answer = self._answer + data if self._answer else data
        at, size, message = 0, len(answer), self._message
        while at < size and self._heard + at <= _MAX_ANSWER:
            if answer[at] not in CONTENT_TYPES:
                self.is_over = True  # it does not speak TLS
                return
            start = at + RECORD_HEAD
            if start > size:
                break
            stop = start + int.from_bytes(answer[at + 3 : start], "big")
            handshake = message + answer[start:stop] if answer[at] == _HANDSHAKE else message
            if len(handshake) >= _RANDOM.stop:
                self._hears_server = False
                self.is_over = handshake[0] == _SERVER_HELLO and handshake[_RANDOM] != _RETRY
                return
            if stop > size:
                break
            at, message = stop, handshake
        self._heard += at
        self._answer, self._message = answer[at:], message
        if self._heard + len(self._answer) > _MAX_ANSWER:  # a hello may follow for all that we know
            self._hears_server = False
            self._answer = self._message = b""

    def _end(self, held: bytes) -> bytes:
        self.is_over = True
        self.held = b""
        return held
