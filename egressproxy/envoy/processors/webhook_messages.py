"""What a webhook is sent and what it answers: JSON. Pure.

The answer is read strictly: a field that nobody knows would be a change that does not happen, or a denial.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from egressproxy.envoy.field_change import FieldAction, FieldChange
from egressproxy.model.exchange import Exchange
from egressproxy.model.strict_json import Unreadable, dumps, loads_strictly

_MAX_MESSAGE: Final = 500
_ACTIONS: Final = {"set": FieldAction.SET, "add": FieldAction.APPEND}

Lines = Iterable[tuple[bytes, bytes]]


class InvalidAnswer(ValueError):
    """The webhook answered what is not as documented. The text names the field, and no value."""


@dataclass(frozen=True, slots=True)
class WebhookAnswer:
    """`status` 0: the exchange goes on. `headers` and `body` change the message that was sent; None: the body stays."""

    status: int = 0
    message: str = ""
    retry_after_s: int = 0
    headers: tuple[FieldChange, ...] = ()
    body: bytes | None = field(default=None, repr=False)


def webhook_message(
    phase: str, exchange: Exchange, request: Lines, response: Lines | None, body: bytes | None
) -> bytes:
    """The JSON for one phase: the lines of heads that may be seen, and the `body` of its message (None: it is not
    sent).
    """
    shown = [(_text(name), _text(value)) for name, value in request]
    message: dict[str, Any] = {
        "version": 1,
        "phase": phase,
        "id": exchange.request_id,
        "client": {
            "address": exchange.client,
            "namespace": exchange.identity.namespace,
            "serviceAccount": exchange.identity.service_account,
            "identity": exchange.identity.name,
        },
        "gateway": exchange.gateway,
        "listener": exchange.listener,
        "route": exchange.route,
        "backend": exchange.backend,
        "request": {
            "method": _text(exchange.request.method),
            "scheme": _text(exchange.scheme),
            "host": _text(exchange.upstream_host or exchange.request.host) or str(exchange.authority or ""),
            "path": _text(exchange.request.path) if not exchange.is_tunnel else "",
            "headers": [{"name": name, "value": value} for name, value in shown],
        },
    }
    if response is not None:
        lines = [{"name": _text(name), "value": _text(value)} for name, value in response]
        message["response"] = {"status": exchange.response.status, "headers": lines}
    if body is not None:
        message["body"] = _body(body)
    return dumps(message)


def read_answer(status: int, body: bytes) -> WebhookAnswer:
    """What an answer with this status and body decides. Raises InvalidAnswer."""
    if status == 204 and not body:
        return WebhookAnswer()
    if status != 200:
        raise InvalidAnswer(f"status {status}")
    try:
        answer = loads_strictly(body)
    except Unreadable as error:
        raise InvalidAnswer(f"no JSON that can be read: {error}") from None
    _check_fields(answer, "answer", {"action", "status", "message", "retryAfter", "headers", "body"})
    action = answer.get("action")
    if action == "allow":
        for name in ("status", "message", "retryAfter"):
            if name in answer:
                raise InvalidAnswer(f"{name} belongs to the action deny")
        return WebhookAnswer(headers=_changes(answer.get("headers", {})), body=_new_body(answer.get("body")))
    if action != "deny":
        raise InvalidAnswer("action is neither allow nor deny")
    if "headers" in answer or "body" in answer:
        raise InvalidAnswer("headers and body belong to the action allow")
    code, message, wait = answer.get("status", 403), answer.get("message", ""), answer.get("retryAfter", 0)
    if type(code) is not int or not 400 <= code <= 599 or code == 407:
        raise InvalidAnswer("status is not one from 400 to 599, without 407")
    if not isinstance(message, str) or not message.isprintable():
        raise InvalidAnswer("message is not a line of text")
    if type(wait) is not int or not 0 <= wait <= 86400:
        raise InvalidAnswer("retryAfter is not a number of seconds up to a day")
    return WebhookAnswer(code, message[:_MAX_MESSAGE], wait)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _body(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _new_body(written: Any) -> bytes | None:
    if written is None:
        return None
    _check_fields(written, "body", {"text", "base64"})
    if len(written) != 1 or not all(isinstance(value, str) for value in written.values()):
        raise InvalidAnswer("body has either text or base64")
    if "text" in written:
        text: str = written["text"]
        return text.encode()
    try:
        return base64.b64decode(written["base64"], validate=True)
    except (binascii.Error, ValueError):
        raise InvalidAnswer("body.base64 is not base64") from None


def _changes(written: Any) -> tuple[FieldChange, ...]:
    _check_fields(written, "headers", {"set", "add", "remove"})
    made = []
    for name in _list(written.get("remove", []), "headers.remove"):
        if not isinstance(name, str):
            raise InvalidAnswer("headers.remove has names")
        made.append(FieldChange(_name(name), FieldAction.REMOVE))
    for kind, action in _ACTIONS.items():
        for each in _list(written.get(kind, []), f"headers.{kind}"):
            _check_fields(each, f"headers.{kind}", {"name", "value"})
            name, value = each.get("name"), each.get("value")
            if not isinstance(name, str) or not isinstance(value, str):
                raise InvalidAnswer(f"headers.{kind} has a name and a value each")
            made.append(FieldChange(_name(name), action, value.encode()))
    return tuple(made)


def _name(name: str) -> bytes:
    return name.lower().encode()


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidAnswer(f"{name} is not a list")
    return value


def _check_fields(value: Any, name: str, known: Iterable[str]) -> None:
    if not isinstance(value, Mapping):
        raise InvalidAnswer(f"{name} is not an object")
    if value.keys() - set(known):
        raise InvalidAnswer(f"{name} has a field that is not documented")
