"""What a person is shown of a request that waits: enough to judge it, and no secret in it.

Secrets are taken out before anything is cut, so that none is half there; what stands far behind the cut is not looked
at, since a client chooses how long that is. What is shown is for people; what is decided on is the request itself, of
which there are digests.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final
from urllib.parse import unquote_plus

from egressproxy.ai.apis.member_names import rpc_fault
from egressproxy.ai.apis.message import JsonMessage
from egressproxy.ai.content.entities import Redactor
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import media_type
from egressproxy.model.strict_json import Unreadable, looks_like_json

#: Characters of a path, a query, a body and the arguments of one call.
SHOWN: Final = 1024
#: Of one text in JSON: what stands behind a long one is to be seen, too.
SHOWN_OF_TEXT: Final = 256
SHOWN_CALLS: Final = 16
#: Of a path, of one parameter, of one text in JSON, and of another body, where they are longer: a private key that
#: begins in what is shown ends in this.
LOOKED_AT: Final = SHOWN + 20 * 1024
#: A longer body of JSON is shown as text.
MAX_JSON: Final = 64 * 1024
#: The placeholder for an unknown tool.
UNREADABLE: Final = "?"

HIDDEN: Final = "[SECRET]"
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
#: Words in the name of a member of JSON, or of a parameter, whose value is a secret.
_SECRET_WORDS: Final = frozenset(
    (
        "apikey", "assertion", "auth", "authorization", "bearer", "cookie", "credential", "credentials", "jwt", "otp",
        "pass", "passcode", "passphrase", "passwd", "password", "pwd", "secret", "session", "sessionid", "sid", "sig",
        "signature", "token",
    )
)  # fmt: skip
#: Before `key`: what it opens.
_OF_KEYS: Final = frozenset(
    ("access", "account", "api", "auth", "client", "encryption", "private", "secret", "signing")
)
#: Parameters of URLs alone.
_SECRET_PARAMETERS: Final = frozenset(("appid", "code", "key", "subscription-key"))


def shown_request(exchange: Exchange, body: bytes, redactor: Redactor) -> dict[str, Any]:
    """Who asks for what, with digests: `bodySha256` of the body, `requestSha256` of everything that is fixed."""
    path = exchange.request.path.partition(b"?")[0].decode("latin-1")
    digest = hashlib.sha256(body).hexdigest()
    authority = str(exchange.authority)
    whole = (
        exchange.method,
        exchange.scheme,
        authority.encode(),
        exchange.request.path,
        digest.encode(),
        exchange.identity.name.encode(),
    )
    return {
        "identity": exchange.identity.name, "client": exchange.client,
        "method": exchange.method.decode("latin-1"), "authority": authority,
        "path": _clean(redactor(path[:LOOKED_AT]))[:SHOWN], "bodyBytes": len(body), "bodySha256": digest,
        "requestSha256": hashlib.sha256(b"\n".join(whole)).hexdigest(), "requestId": exchange.request_id,
    }  # fmt: skip


def shown_content(exchange: Exchange, body: bytes, redactor: Redactor) -> dict[str, Any]:
    """Query, calls of tools and beginning of the body, without secrets; `isCut`: one of them, or the path, goes on."""
    path, query = exchange.request.path.partition(b"?")[::2]
    made = {"query": _clean(_pairs(query.decode("latin-1"), redactor))}
    calls = called_tools(body) if len(body) <= MAX_JSON and looks_like_json(body) else []
    shown_calls = [
        {"tool": _clean(name), "arguments": _json(arguments, redactor)} for name, arguments in calls[:SHOWN_CALLS]
    ]
    made["body"] = _body(media_type(exchange.request.fields), body, redactor)
    texts = (*made.values(), *(each["arguments"] for each in shown_calls))
    is_cut = len(path) > SHOWN or max(len(query), len(body)) > LOOKED_AT or len(calls) > SHOWN_CALLS
    is_cut = is_cut or any(len(each) > SHOWN for each in texts)
    for call in shown_calls:
        call["arguments"] = call["arguments"][:SHOWN]
    return {**{name: text[:SHOWN] for name, text in made.items()}, "calls": shown_calls, "isCut": is_cut}


def called_tools(body: bytes) -> list[tuple[str, Any]]:
    """The tools that this JSON-RPC calls, and their arguments; UNREADABLE for what names none, or cannot be read."""
    try:
        value = JsonMessage.parse(body)
    except Unreadable:
        return [(UNREADABLE, None)]
    found: list[tuple[str, Any]] = []
    for message in value if type(value) is list else [value]:
        if rpc_fault(message):  # some servers read another call
            found.append((UNREADABLE, message))
        elif type(message) is dict and message.get("method") == "tools/call":
            params = message.get("params")
            called = params if type(params) is dict else {}
            name = called.get("name")
            found.append((name, called.get("arguments")) if type(name) is str else (UNREADABLE, params))
    return found


def _body(kind: bytes, body: bytes, redactor: Redactor) -> str:
    """ "" for what is no text."""
    if kind == b"application/x-www-form-urlencoded":
        return _clean(_pairs(body[:LOOKED_AT].decode("latin-1"), redactor))
    if len(body) <= MAX_JSON and looks_like_json(body):
        try:
            return _json(JsonMessage.parse(body), redactor)
        except Unreadable:
            pass
    try:
        text = body[:LOOKED_AT].decode()
    except UnicodeDecodeError as error:
        if error.start < len(body[:LOOKED_AT]) - 3:  # not one character that is cut
            return ""
        text = body[: error.start].decode()
    return "" if "\0" in text else _clean(redactor(text))


def _json(value: Any, redactor: Redactor) -> str:
    return _clean(json.dumps(_WithoutSecrets(redactor)(value), ensure_ascii=False))


@dataclass(slots=True, eq=False, repr=False)
class _WithoutSecrets:
    """Makes of a value of JSON one without secrets, as far as it is shown: behind SHOWN characters it ends."""

    _redactor: Redactor
    _left: int = SHOWN

    def __call__(self, value: Any) -> Any:
        if type(value) is str:
            return self._text(value)
        if type(value) is list:
            return [self(each) for each in value if self._has_room()]
        if type(value) is not dict:
            return value
        made: dict[str, Any] = {}
        for name, each in value.items():
            if not self._has_room():
                break
            is_hidden = _is_secret(name) and type(each) not in (dict, list, bool, type(None))
            seen = self._taken(_redacted(name, self._redactor))
            while seen in made:  # two secrets are two members
                seen = f"{seen} ({len(made) + 1})"
            made[seen] = HIDDEN if is_hidden else self(each)
        return made

    def _has_room(self) -> bool:
        """For one more, of a character at least."""
        self._left -= 1
        return self._left >= 0

    def _text(self, value: str) -> str:
        text = self._taken(_redacted(value, self._redactor))
        if max(len(text), len(value) - LOOKED_AT + SHOWN_OF_TEXT) <= SHOWN_OF_TEXT:
            return text
        return f"{text[:SHOWN_OF_TEXT]}… ({len(value)} characters)"

    def _taken(self, text: str) -> str:
        self._left -= min(len(text), SHOWN_OF_TEXT)
        return text


def _redacted(text: str, redactor: Redactor) -> str:
    """Without secrets, and without what stands too far behind to be shown."""
    return redactor(text[:LOOKED_AT])


def _pairs(text: str, redactor: Redactor) -> str:
    """`a=1&b=2`, decoded, with the values hidden that are secrets, until it is longer than what is shown."""
    shown, left = [], SHOWN
    for pair in text.split("&") if text else ():
        name, sign, value = pair.partition("=")
        name, value = unquote_plus(name), unquote_plus(value)
        hidden = _is_secret(name) or name.lower() in _SECRET_PARAMETERS
        shown.append(f"{_redacted(name, redactor)}{sign}{HIDDEN if hidden and value else _redacted(value, redactor)}")
        left -= len(shown[-1]) + 1
        if left < 0:
            break
    return "&".join(shown)


def _is_secret(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    return not _SECRET_WORDS.isdisjoint(words) or any(
        word == "key" and before in _OF_KEYS for before, word in pairwise(words)
    )


def _clean(text: str) -> str:
    """Without characters that change how the rest is shown: controls, and those of writing direction."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
