"""Webhook: a server of the operator's that speaks HTTP and JSON decides on exchanges and changes them.

Where there is a Secret, calls are signed as Standard Webhooks has it: webhook-id, webhook-timestamp, webhook-signature.
The messages are told in docs/filters/webhook.md.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from itertools import cycle
from typing import Annotated, Final, Literal

from egressproxy.envoy.processors.attributes import shown
from egressproxy.envoy.processors.mutations import MutationChecker, forwarded, rejected_mutations
from egressproxy.envoy.processors.settings import (
    SHOWS_ALL,
    USUAL_RULES,
    DurationText,
    ForwardRules,
    MutationRules,
)
from egressproxy.envoy.processors.webhook_messages import InvalidAnswer, WebhookAnswer, read_answer, webhook_message
from egressproxy.errors import Reason
from egressproxy.filters.base import BodyMode, Filter, FilterContext, FilterType, Phase, Rejected, UnusableReference
from egressproxy.filters.settings import (
    CalledBackendRef,
    CallPath,
    FieldName,
    FieldValue,
    FilterConfig,
    SecretRef,
    Within,
    seconds,
)
from egressproxy.ir.policy import FieldFault
from egressproxy.model.exchange import Exchange

_JSON: Final = (b"content-type", b"application/json")
#: How secrets of Standard Webhooks begin; the rest is base64.
_PREFIX: Final = b"whsec_"

Sent = Literal["request-headers", "request-body", "response-headers", "response-body"]


class SecretMissing(Exception):
    """The Secret that signs is not there."""


class StatusOfWebhook(Exception):
    """The webhook answered with a status that says nothing of the exchange."""


@dataclass(frozen=True, slots=True)
class CallHeader(FilterConfig):
    """A field of each call."""

    name: FieldName
    value: FieldValue

    def __post_init__(self) -> None:
        name = self.name.lower()
        if name in ("host", "content-length", "content-type", "connection", "transfer-encoding") or name.startswith(
            "webhook-"
        ):
            raise FieldFault(f"{self.name} is written by the gateway itself", "name")


@dataclass(frozen=True, slots=True)
class WebhookConfig(FilterConfig):
    """Webhook."""

    backend_refs: Annotated[tuple[CalledBackendRef, ...], Within(min_length=1, max_length=16)]
    """Who is asked. With several each call goes to the next one."""
    path: CallPath = "/"
    """Where it is asked, with a POST."""
    send: Annotated[tuple[Sent, ...], Within(min_length=1, max_length=4)] = ("request-headers",)
    """The phases that are sent, one call for each. A message without a body is sent with its head."""
    timeout: DurationText = "5s"
    """How long it may take. The extension's `timeout` holds as well."""
    max_body_bytes: Annotated[int, Within(ge=1, le=16 * 1024 * 1024)] = 512 * 1024
    """The longest body that is sent."""
    forward_rules: ForwardRules = SHOWS_ALL
    """The fields that the webhook sees. By default all."""
    mutation_rules: MutationRules = USUAL_RULES
    """The fields that the webhook may change."""
    headers: Annotated[tuple[CallHeader, ...], Within(max_length=32)] = ()
    """Fields of each call."""
    secret_ref: SecretRef | None = None
    """The key that signs each call."""


class Webhook(Filter):
    """One call for each phase that is sent. Whatever it raises is a failure of the webhook, but for Rejected."""

    decodes = True

    def __init__(self, context: FilterContext) -> None:
        config: WebhookConfig = context.config
        self._path = config.path.encode()
        self._timeout_s = seconds(config.timeout) or 5.0
        self._checker = MutationChecker(config.mutation_rules, rejected_mutations(context.meter).add)
        self._shown = forwarded(config.forward_rules)
        self._fields = (_JSON, *((each.name.encode(), each.value.encode()) for each in config.headers))
        self._is_signed = config.secret_ref is not None
        secret = context.secrets.get(config.secret_ref.label) if config.secret_ref is not None else None
        self._key = _key(secret.reveal(), config.secret_ref) if secret is not None else b""
        self._calls = cycle([context.calls[ref.label] for ref in config.backend_refs if ref.label in context.calls])
        self.max_buffer_bytes = config.max_body_bytes
        sent = frozenset(Phase(name) for name in config.send)
        self._sends = sent
        request, response = Phase.REQUEST_HEADERS, Phase.RESPONSE_HEADERS
        if context.phase is Phase.BACKEND_REQUEST:
            request, response = Phase.BACKEND_REQUEST, Phase.BACKEND_RESPONSE
        # A message without a body is sent with its head.
        heads = {Phase.REQUEST_HEADERS: request, Phase.REQUEST_BODY: request}
        heads |= {Phase.RESPONSE_HEADERS: response, Phase.RESPONSE_BODY: response}
        self.runs_in = frozenset(map(heads.__getitem__, sent)) | (sent & {Phase.REQUEST_BODY, Phase.RESPONSE_BODY})

    async def request_headers(self, exchange: Exchange) -> None:
        if Phase.REQUEST_HEADERS in self._sends:
            await self._changed(exchange, Phase.REQUEST_HEADERS)
        elif not _has_body(exchange):
            await self._changed(exchange, Phase.REQUEST_BODY)

    backend_request = request_headers

    async def request_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes:
        return await self._changed(exchange, Phase.REQUEST_BODY, data)

    async def response_headers(self, exchange: Exchange) -> None:
        if Phase.RESPONSE_HEADERS in self._sends:
            await self._changed(exchange, Phase.RESPONSE_HEADERS)
        elif exchange.response.body == 0 or exchange.request.method == b"HEAD" or exchange.response.status == 101:
            await self._changed(exchange, Phase.RESPONSE_BODY)

    backend_response = response_headers

    async def response_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes:
        return await self._changed(exchange, Phase.RESPONSE_BODY, data)

    async def _changed(self, exchange: Exchange, phase: Phase, data: bytes | None = None) -> bytes:
        """Ask, and change the head as the answer says; returns the body as that says."""
        answer = await self._ask(exchange, phase, data)
        is_response = phase in (Phase.RESPONSE_HEADERS, Phase.RESPONSE_BODY)
        change = self._checker.change_response if is_response else self._checker.change_request
        change(answer.headers, exchange)
        return (data or b"") if answer.body is None else answer.body

    def body_mode_for(self, exchange: Exchange, phase: Phase) -> BodyMode | None:
        return BodyMode.BUFFER

    async def _ask(self, exchange: Exchange, phase: Phase, body: bytes | None) -> WebhookAnswer:
        call = next(self._calls, None)
        if call is None:
            raise StatusOfWebhook
        is_response = phase in (Phase.RESPONSE_HEADERS, Phase.RESPONSE_BODY)
        response = shown(exchange.response.fields, self._shown) if is_response else None
        message = webhook_message(phase.value, exchange, shown(exchange.request.fields, self._shown), response, body)
        fields = self._fields
        if self._is_signed:
            if not self._key:
                raise SecretMissing
            fields = (*fields, *signature_fields(self._key, f"msg_{secrets.token_hex(12)}", int(time.time()), message))
        received = await call.request(b"POST", self._path, fields, message, timeout_s=self._timeout_s, x=exchange)
        answer = read_answer(received.status, received.body)
        if answer.body is not None and body is None:
            raise InvalidAnswer("a body where none was sent")
        if answer.status:
            why, wait_s = answer.message or "the webhook refused it", answer.retry_after_s
            raise Rejected(why, status=answer.status, reason=Reason.FILTER_REJECTED, retry_after_s=wait_s)
        return answer


def signature_fields(key: bytes, number: str, time_s: int, message: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """The fields of Standard Webhooks: HMAC-SHA256 over the id, the time (seconds since 1970) and the message."""
    signed = hmac.new(key, b"%s.%d.%b" % (number.encode(), time_s, message), hashlib.sha256).digest()
    return (
        (b"webhook-id", number.encode()),
        (b"webhook-timestamp", b"%d" % time_s),
        (b"webhook-signature", b"v1," + base64.b64encode(signed)),
    )


def _key(secret: bytes, ref: SecretRef | None) -> bytes:
    """The bytes that sign: what stands in base64 behind `whsec_`, or the Secret as it is. Raises UnusableReference."""
    secret = secret.strip()
    if not secret.startswith(_PREFIX):
        return secret
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        raise UnusableReference("the Secret begins with whsec_, and is not base64 behind it", ref) from None
    if not key:
        raise UnusableReference("the Secret has no key behind whsec_", ref)
    return key


def _has_body(exchange: Exchange) -> bool:
    return exchange.request.body != 0 and not exchange.is_tunnel


WEBHOOK: Final = FilterType(
    name="egressproxy.io/Webhook:v1",
    phases=frozenset((Phase.REQUEST_HEADERS, Phase.BACKEND_REQUEST)),
    config_model=WebhookConfig,
    build=Webhook,
    also=frozenset((Phase.REQUEST_BODY, Phase.RESPONSE_HEADERS, Phase.BACKEND_RESPONSE, Phase.RESPONSE_BODY)),
    summary="Asks a server by HTTP and JSON whether requests and responses may pass, and how to change them.",
)
