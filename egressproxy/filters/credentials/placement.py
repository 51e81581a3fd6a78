"""Where a credential goes in the head of a request: a header, a parameter of the query, or the password of Basic."""

from __future__ import annotations

from base64 import b64encode
from urllib.parse import quote, unquote_to_bytes

from egressproxy.filters.credentials.config import CredentialInjectorConfig
from egressproxy.model.fields import VALUE
from egressproxy.model.secret import SecretBytes

#: The fields in which clients of common APIs send their keys.
CREDENTIAL_FIELDS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")


class Placement:
    """Renders values for the place that a config names. `query` is the name of the parameter, b"" for a header."""

    __slots__ = ("_prefix", "_template", "_user", "query")

    def __init__(self, config: CredentialInjectorConfig, user: SecretBytes | None) -> None:
        """`user`: that of `usernameRef`."""
        self.query = config.query.encode()
        self._prefix = b"" if config.query else b"\r\n%s: " % (config.header or "Authorization").encode()
        self._template = config.template.encode()
        self._user: SecretBytes | None = None
        if config.basic is not None:
            self._user = user if user is not None else SecretBytes(config.basic.username.encode())

    def text(self, raw: bytes) -> bytes:
        """The credential as it stands in the place. Raises ValueError for one that a field cannot have."""
        if not raw or not VALUE.fullmatch(raw):
            what = "it contains a control character (CR, LF …)" if raw else "it is empty"
            raise ValueError(f"cannot be sent in a field: {what}")
        if self._user is not None:
            return b"Basic " + b64encode(self._user.reveal() + b":" + raw)
        return self._template.replace(b"{}", raw)

    def render(self, raw: bytes) -> SecretBytes:
        """What goes into the head: a line with CRLF in front, or an encoded parameter. Raises as `text`."""
        text = self.text(raw)
        if self.query:
            return SecretBytes(self.query + b"=" + quote(text, safe="").encode())
        return SecretBytes(self._prefix + text)


def with_parameter(target: bytes, name: bytes, parameter: bytes) -> bytes:
    """The target with this (encoded) parameter instead of every one of that name, in any encoding and case, also behind
    ";", which some origins read as "&".
    """
    path, _, query = target.partition(b"?")
    name = name.lower()
    if query and b"%" not in query and name not in query.lower():
        return target + b"&" + parameter
    kept = (b";".join(part for part in pair.split(b";") if _parameter_name(part) != name) for pair in query.split(b"&"))
    return path + b"?" + b"&".join([*filter(None, kept), parameter])


def _parameter_name(part: bytes) -> bytes:
    name = part.partition(b"=")[0]
    return (unquote_to_bytes(name) if b"%" in name else name).lower()
