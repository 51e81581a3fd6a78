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
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote, unquote, unquote_plus, urlsplit

from egressproxy.ai.apis.streams import LenientEditor, framing_of
from egressproxy.ai.content.entities import ENTITIES, KEYS, Redactor, scanner_of
from egressproxy.filters.credentials.backend_credential import CREDENTIAL_PARAMETERS
from egressproxy.filters.masking import MIN_SECRET, Mask
from egressproxy.model.fields import CREDENTIAL_FIELDS
from egressproxy.model.secret import SecretBytes
from egressproxy.tapes.tape import Headers, Interaction, is_json, value_of

#: Addresses of machines and versions look alike, so a tape keeps them.
_ENTITIES: Final = tuple(each for each in ENTITIES if each != "IP_ADDRESS")
MARK: Final = "[SECRET]"
_MARK_IN_URL: Final = "SECRET"
_FIELDS: Final = frozenset((*CREDENTIAL_FIELDS, "proxy-authorization", "x-csrf-token", "x-xsrf-token"))
_COOKIES: Final = ("cookie", "set-cookie")
_SESSION: Final = re.compile(r"(?:[\w-]+-)?session-id")
#: Fields and members whose name says that the value is a credential. The value of a token is one if it is long: there
#: are tokens of texts, too.
_NAMED: Final = re.compile(
    r"(?:.*[-_.])?(?:password|passwd|pwd|passphrase|secret|secrets|(?:api|secret|private|access|account|shared|signing|"
    r"encryption|client|subscription|auth|service)[-_]?keys?|credentials?|authorization|auth|cookies?|set-cookie|"
    r"jwt|bearer|assertion|code_verifier|device_code|otp|pin|ssn|webhook[-_]?url)|.*(?:secret|password|passwd|apikey)"
    r"|apikey",
    re.IGNORECASE,
)
_TOKEN: Final = re.compile(r"(?:.*[-_.])?\w*token", re.IGNORECASE)
_SIGNATURE: Final = re.compile(r"(?:.*-)?(?:signature|sig)")
_NO_TOKEN: Final = re.compile(r".*(?:page|next|continuation|cursor|pad|eos|bos|sync|ratelimit).*", re.IGNORECASE)
_PARAMETERS: Final = frozenset(
    (
        *(each.decode() for each in CREDENTIAL_PARAMETERS), "token", "id_token", "refresh_token", "client_secret",
        "password", "secret", "sig", "signature", "code", "code_verifier", "code_challenge", "state", "nonce", "auth",
        "assertion", "client_assertion", "jwt", "x-amz-signature", "x-amz-credential", "x-amz-security-token",
        "x-goog-signature", "x-goog-credential", "awsaccesskeyid", "googleaccessid", "hapikey", "appid",
    )
)  # fmt: skip
_ANY_PARAMETER: Final = "|".join(map(re.escape, sorted(_PARAMETERS, key=len, reverse=True)))
_IN_URLS: Final = re.compile(rf"([?&;](?:{_ANY_PARAMETER})=)[^&;\s\"'<>#\\]+", re.IGNORECASE)
_USER_INFO: Final = re.compile(r"(://)[^/@\s\"':]{1,256}:[^/@\s\"']{1,512}@")
#: Keys in the path: Telegram's bots, and the webhooks of Slack and Discord.
_PATH_KEYS: Final = re.compile(
    r"(/bot)\d+:[\w-]{20,}|(/services/)T\w+/B\w+/\w+|(/api/webhooks/)\d+/[\w-]+", re.IGNORECASE
)
_TEXT: Final = re.compile(
    r"text/.*|application/(?:.*\+)?xml|application/(?:x-)?(?:javascript|yaml|ndjson|jsonl|graphql).*"
)
#: What servers of packages, images and repositories tell, which has digests elsewhere.
_DIGESTED: Final = re.compile(r"application/(?:vnd\.(?:pypi|docker|oci)\b.*|x-git-.*)")
_MAX_LEARNT: Final = 200
_MAX_NAMES: Final = 10_000
#: Nothing that is looked for has so few characters.
_SHORTEST: Final = 6
#: A number of a card or an account, in digits.
_LONG_NUMBER: Final = 10**12
#: A credential of fewer characters, of letters alone, may be a word of the language.
_NO_WORD: Final = 20


class Masker:
    """The masker of one run. Credentials that were masked once are masked in every later exchange."""

    def __init__(self) -> None:
        self._redactor = Redactor(_ENTITIES)
        self._scanner = scanner_of(_ENTITIES)
        self._keys = scanner_of(KEYS)
        self._learnt: dict[bytes, None] = {}
        self._mask: Mask | None = None
        self._sessions: dict[str, str] = {}
        self._names: dict[str, str] = {}  # of members of JSON, masked

    def interaction(self, found: Interaction) -> Interaction:
        """The exchange without credentials and personal data."""
        uri, headers, body = self._request(found.uri, found.request_headers, found.request_body)
        answer_headers = self._headers(found.headers)
        answer = self._body(found.body, value_of(found.headers, "content-type"))
        return replace(
            found,
            uri=self._known_text(uri), request_headers=self._known_headers(headers), request_body=self._known(body),
            headers=self._known_headers(answer_headers), body=self._known(answer),
        )  # fmt: skip

    def has_known(self, text: str) -> bool:
        """Whether the text has a credential of any exchange until now."""
        data = text.encode()
        return self._known(data) != data

    def request(self, uri: str, headers: Headers, body: bytes) -> tuple[str, Headers, bytes]:
        """The same of a request alone: URI, fields and body."""
        uri, headers, body = self._request(uri, headers, body)
        return self._known_text(uri), self._known_headers(headers), self._known(body)

    def _request(self, uri: str, headers: Headers, body: bytes) -> tuple[str, Headers, bytes]:
        media = value_of(headers, "content-type")
        return self.uri(uri), self._headers(headers), self._body(body, media)

    # --- what was seen before ----------------------------------------------------------------------------------------
    def _learn(self, value: str) -> None:
        """Remember a credential that no innocent text has."""
        data = value.strip().encode()
        has_digit, has_letter = re.search(rb"\d", data), re.search(rb"[A-Za-z]", data)
        is_distinct = len(data) >= _NO_WORD or (has_digit and has_letter)
        if len(data) < MIN_SECRET or not is_distinct or data in self._learnt or value.strip() in (MARK, _MARK_IN_URL):
            return
        self._learnt[data] = None
        if len(self._learnt) > _MAX_LEARNT:
            del self._learnt[next(iter(self._learnt))]
        self._mask = Mask(*map(SecretBytes, self._learnt), shown=MARK.encode())

    def _known(self, data: bytes) -> bytes:
        return data if self._mask is None else self._mask.apply(data)

    def _known_text(self, text: str) -> str:
        return self._known(text.encode()).decode("utf-8", "replace").replace(MARK, _MARK_IN_URL)

    def _known_headers(self, headers: Headers) -> Headers:
        return [(name, self._known(value.encode()).decode("utf-8", "replace")) for name, value in headers]

    # --- heads -------------------------------------------------------------------------------------------------------
    def uri(self, uri: str) -> str:
        """The URI with its credentials masked."""
        parts = urlsplit(uri)
        path = _PATH_KEYS.sub(lambda found: f"{next(filter(None, found.groups()))}{_MARK_IN_URL}", parts.path)
        if self._keys.spans(unquote(path)):
            path = quote(self._keys.replaced(unquote(path), self._in_url), safe="/:@!$&'()*+,;=~")
        pairs = [self._parameter(each) for each in parts.query.split("&")] if parts.query else []
        query = "&".join(pairs)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], path=path, query=query, fragment="").geturl()

    def _parameter(self, pair: str) -> str:
        name, sign, value = pair.partition("=")
        plain, plain_name = unquote_plus(value), unquote_plus(name)
        if value and (plain_name.lower() in _PARAMETERS or _NAMED.fullmatch(plain_name) is not None):
            self._learn(plain)
            return f"{name}{sign}{_MARK_IN_URL}"
        return f"{name}{sign}{self._scanner.replaced(plain, self._in_url)}" if self._scanner.spans(plain) else pair

    def _in_url(self, entity: str, value: str) -> str:
        if entity in KEYS:
            self._learn(value)
        return _MARK_IN_URL if entity in KEYS else entity

    def _headers(self, headers: Headers) -> Headers:
        return [(name, self._field(name.lower(), value)) for name, value in headers]

    def _field(self, name: str, value: str) -> str:
        if name in _COOKIES:
            return self._cookies(value, is_set=name == "set-cookie")
        if _SESSION.fullmatch(name) is not None:
            if re.fullmatch(r"session-\d+", value):
                return value  # of a tape that is played
            return self._sessions.setdefault(value, f"session-{len(self._sessions) + 1}")
        is_named = name in _FIELDS or (_NAMED.fullmatch(name) is not None and len(value) >= MIN_SECRET)
        is_token = _is_token(name) or _SIGNATURE.fullmatch(name) is not None
        if is_named or (is_token and len(value) >= 16 and not value.isdigit()):
            scheme, blank, rest = value.partition(" ")
            if blank and scheme.isalpha():
                self._learn_login(scheme, rest)
                return f"{scheme} {MARK}"
            self._learn(value)
            return MARK
        return self._text(value)

    def _learn_login(self, scheme: str, value: str) -> None:
        self._learn(value)
        if scheme.lower() == "basic":
            try:
                login = b64decode(value, validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                return
            self._learn(login.partition(":")[2])

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
        if not body:
            return body
        if media == "multipart/form-data":
            return self._multipart(body, content_type)
        if _DIGESTED.fullmatch(media) is not None:
            return self._binary(body)
        try:
            text = body.decode()
        except UnicodeDecodeError:
            return self._binary(body)
        if media == "application/x-www-form-urlencoded":
            return "&".join(self._form_pair(each) for each in text.split("&")).encode()
        if media == "text/event-stream":
            return self._stream(body)
        if is_json(media) or (not media and text.lstrip()[:1] in ("{", "[")):
            return self._json(text).encode()
        if "ndjson" in media or "jsonl" in media:
            return "\n".join(map(self._json, text.split("\n"))).encode()
        return self._text(text).encode() if not media or _TEXT.fullmatch(media) is not None else self._binary(body)

    def _text(self, text: str) -> str:
        if len(text) < _SHORTEST:
            return text
        text = _USER_INFO.sub(lambda found: f"{found.group(1)}{MARK}@", text)
        text = _IN_URLS.sub(lambda found: f"{found.group(1)}{_MARK_IN_URL}", text)
        return self._redactor(text) if not text.isdigit() else self._scanner.replaced(text, _mark_of)

    def _json(self, text: str) -> str:
        try:
            value = json.loads(text)
            made = self._value(value, "")
            return text if made == value else json.dumps(made, ensure_ascii=False)
        except (ValueError, RecursionError):
            return self._text(text)

    def _value(self, value: Any, name: str) -> Any:
        if isinstance(value, dict):
            made: dict[str, Any] = {}
            for key, each in value.items():
                masked = self._name(key)
                made[masked if masked not in made else f"{masked} {len(made)}"] = self._value(each, key)
            return made
        if isinstance(value, list):
            return [self._value(each, name) for each in value]
        if isinstance(value, str):
            return self._member(name, value)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _LONG_NUMBER:
            found = self._scanner.spans(str(abs(value)))
            return 0 if found and found[0].end - found[0].start == len(str(abs(value))) else value
        return value

    def _name(self, key: str) -> str:
        found = self._names.get(key)
        if found is None:
            found = self._scanner.replaced(key, _mark_of)
            if len(self._names) < _MAX_NAMES:
                self._names[key] = found
        return found

    def _member(self, name: str, value: str) -> str:
        is_long = len(value) >= 16 and " " not in value
        if value and name and (_NAMED.fullmatch(name) is not None or (is_long and _is_token(name))):
            self._learn(value)
            return MARK
        for span in self._keys.spans(value):
            self._learn(value[span.start : span.end])
        return self._text(value)

    def _form_pair(self, pair: str) -> str:
        name, sign, value = pair.partition("=")
        plain = unquote_plus(value)
        if value and (unquote_plus(name).lower() in _PARAMETERS or self._member(unquote_plus(name), plain) == MARK):
            self._learn(plain)
            return f"{name}{sign}{_MARK_IN_URL}"
        masked = self._text(plain)
        return pair if masked == plain else f"{name}{sign}{masked.replace('&', '%26').replace(' ', '+')}"

    def _stream(self, body: bytes) -> bytes:
        """Event by event, and each text of an AI answer across its events."""
        framing = framing_of(b"text/event-stream")
        assert framing is not None
        hits: list[str] = []

        def replace_in(entity: str, value: str) -> str:
            hits.append(entity)
            return _mark_of(entity, value)

        editor = LenientEditor(framing, lambda channel: self._scanner.stream(replace_in))
        edited = editor.feed(body) + editor.end()
        lines = (edited if hits else body).decode("utf-8", "replace").split("\n")
        return "\n".join(map(self._line, lines)).encode()

    def _line(self, line: str) -> str:
        name, sign, value = line.partition(":")
        if name != "data" or not sign:
            return line
        blank = " " if value.startswith(" ") else ""
        end = "\r" if value.endswith("\r") else ""
        return f"data:{blank}{self._json(value.strip())}{end}" if value.strip() else line

    def _multipart(self, body: bytes, content_type: str) -> bytes:
        found = re.search(r"boundary=\"?([^\";]+)", content_type)
        if found is None:
            return self._binary(body)
        mark = b"--" + found.group(1).encode()
        return mark.join(self._part(each) for each in body.split(mark))

    def _part(self, part: bytes) -> bytes:
        head, blank, content = part.partition(b"\r\n\r\n")
        if not blank:
            return part
        fields = head.decode("utf-8", "replace")
        content, end = (content[:-2], b"\r\n") if content.endswith(b"\r\n") else (content, b"")
        name = re.search(r'\bname="([^"]*)"', fields)
        media = re.search(r"(?im)^content-type:\s*(\S+)", fields)
        masked = self._body(content, media.group(1) if media is not None else "")
        if name is not None and media is None:
            with suppress(UnicodeDecodeError):
                masked = self._member(name.group(1), content.decode()).encode()
        return self._text(fields).encode() + blank + masked + end

    def _binary(self, body: bytes) -> bytes:
        """Keys alone, whose length stays: the rest may be signed or have a digest elsewhere."""
        return self._keys.replaced(body.decode("latin-1"), lambda _entity, value: "*" * len(value)).encode("latin-1")


def _is_token(name: str) -> bool:
    return _TOKEN.fullmatch(name) is not None and _NO_TOKEN.fullmatch(name) is None


def _mark_of(entity: str, _value: str) -> str:
    return f"[{entity}]"
