"""Masker: takes credentials and personal data out of exchanges before they are written, and before they are compared.

What is looked for is what the gateway's own filters look for: the fields and parameters of CredentialInjector, the
entities of PIIDetector, and every form of a credential that was seen before (`filters.masking`). A request is masked in
the same way when it is recorded and when it is played, so that a tape answers clients with another key.
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, unquote_plus, urlsplit

from egressproxy.ai.apis.streams import LenientEditor, framing_of
from egressproxy.ai.content.entities import ENTITIES, KEYS, Redactor, scanner_of
from egressproxy.filters.credentials.backend_credential import CREDENTIAL_PARAMETERS
from egressproxy.filters.masking import MIN_SECRET, Mask
from egressproxy.model.fields import CREDENTIAL_FIELDS
from egressproxy.model.secret import SecretBytes
from egressproxy.tapes.tape import Headers, Interaction, boundary_of, is_json, value_of

#: Addresses of machines and versions look alike, so a tape keeps them.
_ENTITIES: Final = tuple(each for each in ENTITIES if each != "IP_ADDRESS")
MARK: Final = "[SECRET]"
_MARK_IN_URL: Final = "SECRET"
#: Of credentials in fields: the word that stays.
_SCHEMES: Final = frozenset(("basic", "bearer", "digest", "token", "bot", "apikey", "negotiate", "oauth", "dpop"))
_COOKIES: Final = ("cookie", "set-cookie")
_SESSION: Final = re.compile(r"(?:[\w-]+-)?session-id")
#: Fields and members whose name says that the value is a credential.
_NAMED: Final = re.compile(
    r"(?:.*[-_.])?(?:password|passwd|pwd|passphrase|secret|secrets|(?:api|secret|private|access|account|shared|signing|"
    r"encryption|client|subscription|auth|service)[-_]?keys?|credentials?|authorization|auth|cookies?|set-cookie|"
    r"jwt|bearer|assertion|code_verifier|device_code|otp|pin|ssn|webhook[-_]?url)|.*(?:secret|password|passwd|apikey)"
    r"|apikey",
    re.IGNORECASE,
)
#: The value of these is one if it is long: there are tokens of texts, too.
_TOKEN: Final = re.compile(
    r"(?!.*(?:page|next|continuation|cursor|pad|eos|bos|sync|ratelimit))(?:.*[-_.])?\w*token|(?:.*-)?(?:signature|sig)",
    re.IGNORECASE,
)
#: Of fields and parameters alone; members of JSON have keys of many kinds.
_KEY: Final = re.compile(r"(?!.*(?:idempotency|cache|surrogate|routing|partition|websocket)).+[-_]key", re.IGNORECASE)
_PARAMETERS: Final = frozenset(
    (
        *(each.decode() for each in CREDENTIAL_PARAMETERS), "token", "id_token", "refresh_token", "sig", "signature",
        "code", "code_challenge", "state", "nonce", "x-amz-signature", "x-amz-security-token", "x-goog-signature",
        "awsaccesskeyid", "googleaccessid", "hapikey", "appid", "session_id", "sessionid", "jsessionid", "phpsessid",
        "sid",
    )
)  # fmt: skip
#: A parameter of a URL in a text.
_IN_URLS: Final = re.compile(r"([?&;#])([\w.%\[\]-]{1,128}=[^&;?#\s\"'<>\\]+)")
_URL_PIECES: Final = re.compile(r"([/?&;=])")
_USER_INFO: Final = re.compile(r"(://)[^/?#@\s\"'<>]{1,768}@")
#: Keys in the path: Telegram's bots, and the webhooks of Slack and Discord.
_PATH_KEYS: Final = re.compile(
    r"(/bot)\d+:[\w-]{20,}|(/services/)T\w+/B\w+/\w+|(/api/webhooks/)\d+/[\w-]+", re.IGNORECASE
)
_ELEMENT: Final = re.compile(r"(<(?:[\w-]+:)?([\w.-]+)(?: [^<>]*)?>)([^<>]{1,8192})(?=</)")
_TEXT: Final = re.compile(
    r"|text/.*|application/(?:.*\+)?xml|application/(?:x-)?(?:javascript|yaml|ndjson|jsonl|graphql|json-seq).*"
)
#: What servers of packages, images and repositories tell, which has digests elsewhere.
_DIGESTED: Final = re.compile(r"application/(?:vnd\.(?:pypi|docker|oci)\b.*|x-git-.*)")
_MAX_LEARNT: Final = 200
_MAX_NAMES: Final = 10_000
#: Of a name its end is read, in characters: the time of an expression may grow with their square.
_MAX_NAME: Final = 200
#: Nothing that is looked for has so few characters.
_SHORTEST: Final = 6
#: A token has so many characters, and so does a credential of letters alone that is no word of the language.
_LONG: Final = 16
_NO_WORD: Final = 20
#: A number of a card or an account, and one that is a secret, in digits.
_LONG_NUMBER: Final = 10**12
_SECRET_NUMBER: Final = 10**3
#: What an object of a schema has, which tells of a secret without having one.
_SCHEMA: Final = frozenset(("type", "$ref", "description"))


class Masker:
    """The masker of one run. Credentials that were masked once are masked in every later exchange."""

    def __init__(self) -> None:
        self._redactor = Redactor(_ENTITIES)
        self._scanner = scanner_of(_ENTITIES)
        self._keys = scanner_of(KEYS)
        self._learnt: dict[bytes, None] = {}
        self._mask: Mask | None = None
        self._sessions: dict[str, str] = {}
        self._name = lru_cache(_MAX_NAMES)(lambda name: self._scanner.replaced(name, _mark_of))  # of a member

    def interaction(self, found: Interaction) -> Interaction:
        """The exchange without credentials and personal data."""
        uri, request_headers, request_body = self.request(found.uri, found.request_headers, found.request_body)
        headers, body = self._message(found.headers, found.body)
        phrase = self._known_text(self._text(found.phrase))
        return replace(
            found, uri=uri, request_headers=request_headers, request_body=request_body, phrase=phrase, headers=headers,
            body=body,
        )  # fmt: skip

    def request(self, uri: str, headers: Headers, body: bytes) -> tuple[str, Headers, bytes]:
        """The same of a request alone: URI, fields and body."""
        headers, body = self._message(headers, body)
        return self._known_text(self.uri(uri)).replace(MARK, _MARK_IN_URL), headers, body

    def _message(self, headers: Headers, body: bytes) -> tuple[Headers, bytes]:
        masked = [(name, self._field(name.lower(), value)) for name, value in headers]
        body = self._body(body, value_of(headers, "content-type"))
        return [(name, self._known_text(value)) for name, value in masked], self.known(body)

    # --- what was seen before ----------------------------------------------------------------------------------------
    def known(self, data: bytes) -> bytes:
        """The data without the credentials of all exchanges until now; the same object if there is none."""
        return data if self._mask is None else self._mask.apply(data)

    def _known_text(self, text: str) -> str:
        return self.known(text.encode()).decode("utf-8", "replace")

    def _learn(self, value: str) -> None:
        """Remember a credential that no innocent text has."""
        data = value.strip().encode("utf-8", "replace")
        is_mixed = re.search(rb"\d", data) and re.search(rb"[A-Za-z]", data)
        if len(data) < (MIN_SECRET if is_mixed else _NO_WORD) or value.strip() in (MARK, _MARK_IN_URL):
            return
        if data not in self._learnt:
            self._learnt[data] = None
            if len(self._learnt) > _MAX_LEARNT:
                del self._learnt[next(iter(self._learnt))]
            self._mask = Mask(*map(SecretBytes, self._learnt), shown=MARK.encode())

    # --- heads -------------------------------------------------------------------------------------------------------
    def uri(self, uri: str) -> str:
        """The URI with its credentials masked."""
        parts = urlsplit(uri)
        path = _PATH_KEYS.sub(lambda found: f"{next(filter(None, found.groups()))}{_MARK_IN_URL}", parts.path)
        path = _IN_URLS.sub(self._in_url, path)
        made = parts._replace(
            netloc=parts.netloc.rpartition("@")[2], path="".join(map(self._piece, _URL_PIECES.split(path))),
            query=self._pairs(parts.query), fragment="",
        )  # fmt: skip
        return made.geturl()

    def _piece(self, piece: str) -> str:
        """A piece of a URL: keys alone are looked for."""
        plain = unquote_plus(piece)
        masked = self._keys.replaced(plain, self._key)
        return piece if masked == plain else _quoted(masked)

    def _key(self, entity: str, value: str) -> str:
        self._learn(value)
        return _mark_of(entity, value)

    def _in_url(self, found: re.Match[str]) -> str:
        return f"{found.group(1)}{self._pair(found.group(2))}"

    def _pairs(self, query: str) -> str:
        """Of a query or a form."""
        return "&".join(map(self._pair, query.split("&")))

    def _pair(self, pair: str) -> str:
        name, sign, value = pair.partition("=")
        if not sign:
            return self._piece(pair)
        plain = unquote_plus(value)
        if plain and _is_secret(unquote_plus(name), plain, of_head=True):
            self._learn(plain)
            return f"{name}={_MARK_IN_URL}"
        masked = self._said(plain)
        return pair if masked == plain else f"{name}={_quoted(masked)}"

    def _field(self, name: str, value: str) -> str:
        if name in _COOKIES:
            return self._cookies(value, is_set=name == "set-cookie")
        if _SESSION.fullmatch(name) is not None:
            if re.fullmatch(r"session-\d+", value):
                return value  # of a tape that is played
            return self._sessions.setdefault(value, f"session-{len(self._sessions) + 1}")
        if name not in CREDENTIAL_FIELDS and not _is_secret(name, value, of_head=True):
            return self._text(value)
        scheme, blank, rest = value.partition(" ")
        if not blank or scheme.lower() not in _SCHEMES:
            self._learn(value)
            return MARK
        self._learn(rest)
        if scheme.lower() == "basic":
            self._learn_login(rest)
        return f"{scheme} {MARK}"

    def _learn_login(self, value: str) -> None:
        try:
            user, _, password = b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return
        self._learn(password)
        if len(password) < MIN_SECRET:
            self._learn(user)  # as of Stripe and GitHub, whose key is the user

    def _cookies(self, value: str, *, is_set: bool) -> str:
        """Names and attributes stay."""
        first, *rest = value.split(";")
        pairs = [first] if is_set else [first, *rest]
        made = []
        for pair in pairs:
            name, sign, secret = pair.partition("=")
            self._learn(secret)
            made.append(f"{name}{sign}{MARK}" if sign else MARK)
        return ";".join([*made, *rest] if is_set else made)

    # --- bodies ------------------------------------------------------------------------------------------------------
    def _body(self, body: bytes, content_type: str) -> bytes:
        media = content_type.partition(";")[0].strip().lower()
        if not body or _DIGESTED.fullmatch(media) is not None:
            return self._binary(body)
        if media.startswith("multipart/") and (boundary := boundary_of(content_type)):
            return (b"--" + boundary).join(map(self._part, body.split(b"--" + boundary)))
        if media.startswith("multipart/"):
            return self._binary(body)
        if media == "text/event-stream":
            return self._stream(body)
        is_form = media == "application/x-www-form-urlencoded"
        is_text = is_form or is_json(media) or _TEXT.fullmatch(media) is not None
        coding: str = json.detect_encoding(body) if is_json(media) else "utf-8"
        try:
            text = body.decode(coding)
        except UnicodeDecodeError:
            if not is_text:
                return self._binary(body)
            text, coding = body.decode("latin-1"), "latin-1"
        if is_form:
            made = self._pairs(text)
        elif "ndjson" in media or "jsonl" in media or "json-seq" in media:
            made = "\n".join(map(self._said, text.split("\n")))
        elif is_text or _begins_json(text):
            made = self._said(text)
        else:
            return self._binary(body)
        return body if made == text else made.encode(coding, "replace")

    def _said(self, text: str) -> str:
        """A text, which may be JSON."""
        if not _begins_json(text):
            return self._text(text)
        twice: list[str] = []
        try:
            value = json.loads(text.strip("\x1e\ufeff"), object_pairs_hook=lambda pairs: _object(pairs, twice))
            made = self._value(value, "")
            return text if made == value and not twice else json.dumps(made, ensure_ascii=False)
        except (ValueError, RecursionError):
            return self._text(text)

    def _text(self, text: str) -> str:
        if len(text) < _SHORTEST:
            return text
        for span in self._keys.spans(text):
            self._learn(text[span.start : span.end])
        text = _USER_INFO.sub(rf"\g<1>{MARK}@", text)
        text = _IN_URLS.sub(self._in_url, text)
        if "</" in text:
            text = _ELEMENT.sub(self._element, text)
        return self._redactor(text) if not text.isdigit() else self._scanner.replaced(text, _mark_of)

    def _element(self, found: re.Match[str]) -> str:
        """Of XML."""
        return f"{found.group(1)}{self._member(found.group(2), found.group(3))}"

    def _value(self, value: Any, name: str) -> Any:
        """`name` is that of the member which has the value, or of one above whose name says that it is secret."""
        if isinstance(value, dict):
            above = name if _NAMED.fullmatch(name) is not None and not value.keys() & _SCHEMA else ""
            told = value.get("name", value.get("key"))  # in a list of names and values
            made: dict[str, Any] = {}
            for key, each in value.items():
                masked = self._name(key)
                own = (told if key == "value" and isinstance(told, str) else key)[-_MAX_NAME:]
                made[masked if masked not in made else f"{masked} {len(made)}"] = self._value(each, above or own)
            return made
        if isinstance(value, list):
            return [self._value(each, name) for each in value]
        if isinstance(value, str):
            return self._member(name, value)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
            return value
        number = abs(int(value))
        if number >= _SECRET_NUMBER and _NAMED.fullmatch(name) is not None:
            return 0
        found = self._scanner.spans(str(number)) if number >= _LONG_NUMBER else []
        return 0 if found and found[0].end - found[0].start == len(str(number)) else value

    def _member(self, name: str, value: str) -> str:
        if not value or not _is_secret(name, value):
            return self._said(value)
        self._learn(value)
        return MARK

    def _stream(self, body: bytes) -> bytes:
        """Event by event, and each text of an AI answer across its events."""
        framing = framing_of(b"text/event-stream")
        assert framing is not None
        hits: list[str] = []

        def replace_in(entity: str, value: str) -> str:
            hits.append(entity)
            return self._key(entity, value) if entity in KEYS else _mark_of(entity, value)

        editor = LenientEditor(framing, lambda channel: self._scanner.stream(replace_in))
        edited = editor.feed(body) + editor.end()
        lines = (edited if hits else body).decode("utf-8", "replace").split("\n")
        return "\n".join(map(self._line, lines)).encode()

    def _line(self, line: str) -> str:
        name, sign, value = line.partition(":")
        if name != "data" or not value.strip():
            return self._text(line)
        blank = " " if value.startswith(" ") else ""
        end = "\r" if value.endswith("\r") else ""
        return f"{name}{sign}{blank}{self._said(value.strip())}{end}"

    def _part(self, part: bytes) -> bytes:
        blank = re.search(rb"\r?\n\r?\n", part)
        if blank is None:
            return self._binary(part)
        fields, content = part[: blank.start()].decode("utf-8", "replace"), part[blank.end() :]
        end = b"\r\n" if content.endswith(b"\r\n") else b"\n" if content.endswith(b"\n") else b""
        content = content.removesuffix(end)
        name = re.search(r'\bname="?([^";\r\n]*)', fields)
        media = re.search(r"(?im)^content-type:\s*([^\r\n]+)", fields)
        said = content.decode("latin-1")
        if name is not None and content and _is_secret(name.group(1), said, of_head=True):
            self._learn(content.decode("utf-8", "replace"))
            content = MARK.encode()
        else:
            content = self._body(content, media.group(1) if media is not None else "")
        return self._text(fields).encode() + blank.group() + content + end

    def _binary(self, body: bytes) -> bytes:
        """Keys alone, whose length stays: the rest may be signed or have a digest elsewhere."""
        return self._keys.replaced(body.decode("latin-1"), lambda _entity, value: "*" * len(value)).encode("latin-1")


def _is_secret(name: str, value: str, *, of_head: bool = False) -> bool:
    """Whether the name says that the value is a credential. `of_head`: of a field, a parameter or a form."""
    name = name[-_MAX_NAME:]
    if _NAMED.fullmatch(name) is not None or (of_head and name.lower() in _PARAMETERS):
        return True
    if len(value) < _LONG or " " in value or value.isdigit():
        return False
    return _TOKEN.fullmatch(name) is not None or (of_head and _KEY.fullmatch(name) is not None)


def _begins_json(text: str) -> bool:
    return text.lstrip("\x1e\ufeff \t\r\n")[:1] in ("{", "[")


def _object(pairs: Sequence[tuple[str, Any]], twice: list[str]) -> dict[str, Any]:
    """An object, of which readers of JSON take the last of equal names, which are told."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice.append("")
    return made


def _quoted(masked: str) -> str:
    """In a URL, with marks that need no escapes."""
    return quote(re.sub(r"\[([A-Z_]+)\]", r"\1", masked), safe="/:@!$'()*,~")


def _mark_of(entity: str, _value: str) -> str:
    return f"[{entity}]"
