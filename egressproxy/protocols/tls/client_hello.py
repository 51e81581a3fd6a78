"""ClientHello: passively reads the first handshake message of a TLS connection. Pure.

It never decrypts, answers or changes any bytes: the caller forwards them unchanged. An ambiguous hello is refused,
since the server might read it differently. A refused client gets an alert in plain text, which is possible only before
encryption starts: after a ClientHello, and at most a HelloRetryRequest from the server. Sources: RFC 8446 sections
4.1.2, 4.2, 5.1 and 6, RFC 6066 section 3, RFC 7301, RFC 9849 (ECH), RFC 5246 appendix E.2 (the ClientHello in the form
of SSLv2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from egressproxy.model.authority import AuthorityError, parse_host

#: The most buffered bytes before a decision, enough for post-quantum key shares and padding.
MAX_BYTES: Final = 40_960
#: The most records of a hello: tens of thousands of one-byte records would take a tenth of a second.
MAX_RECORDS: Final = 1024

_HANDSHAKE: Final = 22  # content type
CONTENT_TYPES: Final = range(20, 25)  # change_cipher_spec, alert, handshake, application_data, heartbeat
_MAX_MAJOR: Final = 0x10  # Go's server reads a first record whose version's first byte is below this
_CLIENT_HELLO: Final = 1  # handshake type
_MAX_RECORD: Final = 16384  # plaintext bytes of a record
RECORD_HEAD: Final = 5
_SERVER_NAME: Final = 0  # extensions
_ALPN: Final = 16
_SUPPORTED_VERSIONS: Final = 43
_ECH: Final = 0xFE0D
_HOST_NAME: Final = 0  # the only type of server name that was ever defined


class NotTls(ValueError):
    """The first bytes cannot be those of a TLS handshake."""


class BadClientHello(ValueError):
    """The bytes start as TLS, but are no valid, unambiguous ClientHello. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class ClientHello:
    """The client's offer: `sni` in lower case without trailing dot (None: no SNI), `versions` as numbers. With
    `has_ech` the real name may differ from `sni` (or the extension is GREASE, which looks the same).
    """

    sni: str | None
    alpn: tuple[bytes, ...]
    versions: tuple[int, ...]
    has_ech: bool


class ClientHelloReader:
    """Feed it until it returns a ClientHello or raises. `data` has all bytes fed, for forwarding, including those after
    the hello's last record.
    """

    __slots__ = ("_at", "_message", "_records", "data")

    def __init__(self) -> None:
        self.data = bytearray()
        self._message = bytearray()  # handshake bytes, without record headers
        self._at = 0  # start of the first record that is not read yet
        self._records = 0  # read so far

    @property
    def size(self) -> int:
        """The bytes of the records read; for a complete hello, of its records."""
        return self._at

    def feed(self, data: bytes) -> ClientHello | None:
        """The hello, or None while it is incomplete.

        Raises NotTls as soon as the bytes cannot be TLS, BadClientHello for a malformed, ambiguous or too large hello.
        Bytes that some server accepts as the start of TLS are never NotTls: an empty record or an alert before the
        hello, or an odd version, must not bypass the check.
        """
        self.data += data
        while self._take_record():
            found = self._complete_message()
            if found is not None:
                return _parse(found)
        if len(self.data) > MAX_BYTES:
            raise BadClientHello(f"the ClientHello is larger than {MAX_BYTES} bytes")
        return None

    def forget(self) -> None:
        """Release the bytes of a complete hello."""
        self.data = self._message = bytearray()

    def _take_record(self) -> bool:
        """Move the next whole record's bytes to the message; False if it is not here yet."""
        head = self.data[self._at : self._at + RECORD_HEAD]
        if self._at == 0:
            if not may_start_tls(head):
                raise NotTls("not a TLS record")
            if head and head[0] & 0x80:
                if len(head) < 4:
                    return False
                raise BadClientHello("a ClientHello in the form of SSLv2, which names no server")
        if len(head) > 1 and (head[0] != _HANDSHAKE or head[1] != 3):
            raise BadClientHello("not a TLS handshake record")
        if len(head) < RECORD_HEAD:
            return False
        size = int.from_bytes(head[3:5], "big")
        if not 0 < size <= _MAX_RECORD:
            raise BadClientHello("not the size of a handshake record")
        start = self._at + RECORD_HEAD
        if len(self.data) < start + size:
            if self._at == 0 and len(self.data) > start and self.data[start] != _CLIENT_HELLO:
                raise BadClientHello("the handshake does not start with a ClientHello")
            return False
        self._records += 1
        if self._records > MAX_RECORDS:
            raise BadClientHello(f"the ClientHello stands in more than {MAX_RECORDS} records")
        self._message += self.data[start : start + size]
        self._at = start + size
        return True

    def _complete_message(self) -> bytes | None:
        message = self._message
        if message[0] != _CLIENT_HELLO:
            raise BadClientHello("the handshake does not start with a ClientHello")
        if len(message) < 4:
            return None
        end = 4 + int.from_bytes(message[1:4], "big")
        if end > MAX_BYTES:
            raise BadClientHello(f"the ClientHello is larger than {MAX_BYTES} bytes")
        if len(message) < end:
            return None
        if len(message) > end:
            raise BadClientHello("another handshake message follows in the ClientHello's record")
        return bytes(message[4:])

    def __repr__(self) -> str:
        return f"ClientHelloReader({len(self.data)} bytes)"


def may_start_tls(head: bytes | bytearray) -> bool:
    """Whether some TLS server would go on reading after a connection's first bytes (one or more are enough)."""
    if not head:
        return True
    if head[0] & 0x80:  # SSLv2: a length, its highest bit set; the type of the message; the version that is wanted
        return head[:2] != b"\x80\x00" and head[2:3] in (b"", b"\x01") and head[3:4] in (b"", b"\x03")
    return head[0] in CONTENT_TYPES and (len(head) == 1 or head[1] < _MAX_MAJOR)


class _Cursor:
    """Reads vectors. Raises BadClientHello beyond the end."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def has_more(self) -> bool:
        return self.at < len(self.data)

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise BadClientHello("a length in the ClientHello goes beyond its end")
        taken, self.at = self.data[self.at : end], end
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, length_size: int) -> bytes:
        return self.take(self.number(length_size))


def _parse(body: bytes) -> ClientHello:
    hello = _Cursor(body)
    legacy_version = hello.number(2)
    if legacy_version >> 8 != 3:
        raise BadClientHello("not a TLS version in the ClientHello")
    hello.take(32)  # random
    if len(hello.vector(1)) > 32:
        raise BadClientHello("the session id is too long")
    suites = hello.vector(2)
    if not suites or len(suites) % 2:
        raise BadClientHello("malformed cipher suites")
    if not hello.vector(1):
        raise BadClientHello("no compression method")
    extensions = _extensions(hello.vector(2)) if hello.has_more else {}
    if hello.has_more:
        raise BadClientHello("bytes after the extensions")
    versions = extensions.get(_SUPPORTED_VERSIONS)
    return ClientHello(
        sni=_server_name(extensions[_SERVER_NAME]) if _SERVER_NAME in extensions else None,
        alpn=_alpn(extensions[_ALPN]) if _ALPN in extensions else (),
        versions=(legacy_version,) if versions is None else _versions(versions),
        has_ech=_ECH in extensions,
    )


def _extensions(block: bytes) -> dict[int, bytes]:
    """The extensions by number. Without a cursor, for speed: most of a hello is read here."""
    found: dict[int, bytes] = {}
    at, size = 0, len(block)
    while at < size:
        start = at + 4
        end = start + int.from_bytes(block[at + 2 : start], "big")
        if end > size:
            raise BadClientHello("a length in the ClientHello goes beyond its end")
        number = int.from_bytes(block[at : at + 2], "big")
        if number in found:
            raise BadClientHello("an extension occurs twice")
        found[number] = block[start:end]
        at = end
    return found


def _whole(data: bytes, length_size: int, what: str) -> _Cursor:
    """The one vector of which an extension consists; it is never empty."""
    outer = _Cursor(data)
    inner = outer.vector(length_size)
    if outer.has_more or not inner:
        raise BadClientHello(f"malformed {what}")
    return _Cursor(inner)


def _server_name(data: bytes) -> str:
    entries = _whole(data, 2, "server name")
    if entries.number(1) != _HOST_NAME:
        raise BadClientHello("unknown type of server name")
    raw = entries.vector(2)
    if entries.has_more:
        raise BadClientHello("more than one server name")
    try:
        name, address = parse_host(raw)
    except AuthorityError:
        raise BadClientHello("the server name is not a host name") from None
    if address is not None:
        raise BadClientHello("the server name is an address")
    return name


def _alpn(data: bytes) -> tuple[bytes, ...]:
    entries = _whole(data, 2, "ALPN")
    names = []
    while entries.has_more:
        names.append(entries.vector(1))
        if not names[-1]:
            raise BadClientHello("an empty name in ALPN")
    return tuple(names)


def _versions(data: bytes) -> tuple[int, ...]:
    entries = _whole(data, 1, "supported versions")
    if len(entries.data) % 2:
        raise BadClientHello("malformed supported versions")
    return tuple(int.from_bytes(entries.take(2), "big") for _ in range(len(entries.data) // 2))


def _fatal(description: int) -> bytes:
    """The record. Its version is that of TLS 1.2, as in every record of TLS 1.3 (RFC 8446 section 5.1)."""
    return b"\x15\x03\x03\x00\x02\x02" + bytes((description,))


#: Policy refuses the destination.
ACCESS_DENIED: Final = _fatal(49)
#: There is no such server here, or not behind this tunnel.
UNRECOGNIZED_NAME: Final = _fatal(112)
#: The ClientHello names no server (TLS 1.3 alone knows it: RFC 8446 section 9.2).
MISSING_EXTENSION: Final = _fatal(109)
_TLS_1_3: Final = 0x0304


def name_alert(hello: ClientHello) -> bytes:
    """The alert for a client that names a wrong server, or none."""
    return MISSING_EXTENSION if hello.sni is None and _TLS_1_3 in hello.versions else UNRECOGNIZED_NAME
