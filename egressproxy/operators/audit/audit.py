"""Audit: a record of each exchange in a chain that shows changes.

A request is refused while its record could not be written; with `failOpen` it goes on, and the chain counts what is
lost. The record is made at the end of the exchange and written by a thread. It tells who, what, where, and what was
decided; models, tools and tokens where the messages are those of an AI provider. It has no query, and no credential.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from time import monotonic, time
from typing import Annotated, Any, Final, Literal

from egressproxy.ai.apis.shared import usage_told
from egressproxy.ai.content.entities import Redactor
from egressproxy.errors import Reason
from egressproxy.filters.base import BodyResult, Filter, FilterContext, FilterType, Phase, UnusableReference
from egressproxy.filters.settings import FieldName, FilterConfig, SecretRef, Within
from egressproxy.ir.policy import FieldFault
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.fields import CREDENTIAL_FIELDS
from egressproxy.model.grpc_status import GRPC_NAMES
from egressproxy.model.secret import SecretBytes
from egressproxy.net.cooperative import run
from egressproxy.operators.audit.bodies import SeenBody
from egressproxy.operators.audit.chain_writer import ChainSettings, Sync, stamp, writer_of

#: Fields whose values are credentials, or may be: they are in no record.
_NEVER = frozenset((
    *CREDENTIAL_FIELDS, "proxy-authorization", "cookie", "set-cookie", "x-amz-signature", "authentication-info",
))  # fmt: skip
#: A key that can be guessed is none.
_MIN_KEY_BYTES = 32

#: Longer values of fields are cut, in bytes.
_MAX_VALUE: Final = 1024
_MAX_PATH: Final = 4096


@dataclass(frozen=True, slots=True)
class AuditConfig(FilterConfig):
    """Where records go, and what they tell.

    Attributes:
        folder: an absolute path of a folder that exists and that this process may write to.
        key_ref: the Secret with the key of HMAC-SHA-256, 32 bytes or more; without one records are hashed by SHA-256.
        bodies: what is told of bodies: their length alone; also the SHA-256 of the content; also the content, without
            what looks like a credential or personal data.
        max_body_bytes: how much of each body `Redacted` keeps, in bytes of the content.
        request_fields: names of request fields that are recorded; none that carries a credential.
        sync: when the disk is told to keep what was written: behind each write, once in a second, or never.
        rotate_bytes: a new file begins when one has so many bytes; 0: never.
        rotate_seconds: a new file begins when one is so old; 0: never.
        max_waiting: records that may wait for the disk; while more do, requests are refused (or go unrecorded and
            counted, with `failOpen`).
    """

    folder: Annotated[str, Within(min_length=1)]
    key_ref: SecretRef | None = None
    bodies: Literal["None", "Hash", "Redacted"] = "Hash"
    max_body_bytes: Annotated[int, Within(ge=1, le=1024 * 1024)] = 16 * 1024
    request_fields: tuple[FieldName, ...] = ()
    sync: Sync = "Interval"
    rotate_bytes: Annotated[int, Within(ge=0)] = 100 * 1024 * 1024
    rotate_seconds: Annotated[float, Within(ge=0, allow_inf_nan=False)] = 86400.0
    max_waiting: Annotated[int, Within(ge=1, le=1_000_000)] = 10_000

    def __post_init__(self) -> None:
        if not os.path.isabs(self.folder):
            why = f"folder {self.folder!r} is no absolute path; give one such as /var/log/egressproxy/audit"
            raise FieldFault(why, "folder")
        for index, name in enumerate(self.request_fields):
            lower = name.lower()
            if lower in _NEVER or any(word in lower for word in ("token", "secret", "password", "api-key", "apikey")):
                why = f"the field {name} may carry a credential, which no record has: leave it out"
                raise FieldFault(why, "requestFields", index)

    def settings(self, key: SecretBytes | None) -> ChainSettings:
        """How records are written. Raises ValueError for a key that is too short."""
        if key is not None and len(key.reveal()) < _MIN_KEY_BYTES:
            raise ValueError(f"the key has fewer than {_MIN_KEY_BYTES} bytes: make one with `openssl rand -hex 32`")
        return ChainSettings(key, self.sync, self.rotate_bytes, self.rotate_seconds, self.max_waiting)


def folder_problem(config: Any) -> str:
    """Why this process cannot write to the folder; "" where it can."""
    folder = config.folder
    if not os.path.isdir(folder):
        return f"{folder} is no folder of this machine: create it, for the user of the gateway alone"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} cannot be written to by this user: give it to the user of the gateway"
    return ""


class AuditUnavailable(Exception):
    """The record of this exchange could not be written: the filter fails."""


class Audit(Filter):
    """Writes to the chain of its folder that this process has. State of an exchange: its two bodies."""

    only_reads = True
    decodes = True
    ignores_trailers = True

    def __init__(self, context: FilterContext) -> None:
        config: AuditConfig = context.config
        key = None
        if config.key_ref is not None:
            key = context.secrets.get(config.key_ref.label)
            if key is None:
                name = config.key_ref.label.rstrip("/")
                why = f"the Secret {name} of keyRef is not there: create it, or say which of its keys"
                raise UnusableReference(why, config.key_ref)
        self._config = config
        try:
            self._settings = config.settings(key)
        except ValueError as error:
            raise UnusableReference(f"keyRef: {error}", config.key_ref) from None
        self._writer = writer_of(config.folder)
        self._redactor = Redactor() if config.bodies == "Redacted" else None
        self._asked: StateSlot[SeenBody] = StateSlot("audit request")
        self._answered: StateSlot[SeenBody] = StateSlot("audit response")
        self._fields = tuple((name, name.lower().encode()) for name in config.request_fields)
        self._extra_fields: StateSlot[dict[str, list[str]]] = StateSlot("audit fields")
        self._has_started = False
        self._notices = context.notices
        self._records = context.meter.counter("egress_audit_records", "Audit records, by decision.", ("decision",))
        self._lost = context.meter.counter("egress_audit_lost", "Audit records that found no place.")

    def request_headers(self, exchange: Exchange) -> None:
        """Raises AuditUnavailable while records cannot be written."""
        if not self._has_started:
            try:
                self._writer.start(self._settings)
            except OSError as error:
                raise self._unavailable(f"{self._config.folder}: {error.strerror}") from None
            self._has_started = True
        if self._fields:
            found = {name: exchange.request.fields.get_all(key) for name, key in self._fields}
            wanted = {
                name: [v[:_MAX_VALUE].decode("latin-1") for v in values] for name, values in found.items() if values
            }
            exchange.keep(self._extra_fields, wanted)
        if why := self._writer.why_not(self._settings):
            raise self._unavailable(why)

    def _unavailable(self, why: str) -> AuditUnavailable:
        self._notices.warning("AuditUnavailable", why)
        return AuditUnavailable(why)

    def request_body(self, exchange: Exchange, data: bytes, last: bool) -> BodyResult:
        return self._fed(exchange, self._asked, data, is_request=True, is_last=last)

    def response_body(self, exchange: Exchange, data: bytes, last: bool) -> BodyResult:
        return self._fed(exchange, self._answered, data, is_request=False, is_last=last)

    def held_bytes(self, exchange: Exchange, phase: Phase) -> int:
        seen = exchange.state.get(self._asked if phase is Phase.REQUEST_BODY else self._answered)
        return seen.held if seen is not None else 0

    def _fed(
        self, exchange: Exchange, slot: StateSlot[SeenBody], data: bytes, *, is_request: bool, is_last: bool
    ) -> BodyResult:
        found = exchange.state.get(slot)
        if found is None:
            bodies = self._config.bodies
            keeps = self._config.max_body_bytes if bodies == "Redacted" else 0
            found = SeenBody(exchange, is_request=is_request, hashes=bodies != "None", keeps=keeps)
            exchange.keep(slot, found)
        is_long = found.takes_long(data, is_last=is_last)
        return run(found.feeding(exchange, data, is_last=is_last), is_long=is_long)

    def complete(self, exchange: Exchange) -> None:
        record = self._record(exchange)
        if self._writer.put(self._settings, record):
            self._records.add(1, record["decision"])
        else:
            self._lost.add()

    def _record(self, exchange: Exchange) -> dict[str, Any]:
        identity = exchange.identity
        decision = "denied" if exchange.denied else "allowed" if exchange.reason is Reason.OK else "failed"
        made: dict[str, Any] = {
            "time": stamp(exchange.started_wall or time()), "kind": "exchange", "request_id": exchange.request_id,
            "gateway": exchange.gateway, "listener": exchange.listener, "route": exchange.route,
            "backend": exchange.backend,
            "namespace": identity.namespace, "service_account": identity.service_account, "client": exchange.client,
            "is_tunnel": exchange.is_tunnel, "method": exchange.method.decode("latin-1"),
            "scheme": exchange.scheme.decode("latin-1"),
            "authority": str(exchange.authority) if exchange.authority is not None else "-",
            "path": exchange.path[:_MAX_PATH].decode("latin-1"), "decision": decision, "status": exchange.status,
            "reason": exchange.reason.value, "rule": exchange.rule, "upstream": exchange.upstream or "-",
            "attempts": exchange.attempts,
            "bytes_in": exchange.bytes_in, "bytes_out": exchange.bytes_out,
            "duration_ms": round((monotonic() - exchange.started_at) * 1000, 3),
        }  # fmt: skip
        if identity.name != "-":
            made |= {"identity": identity.name, "identity_source": identity.source}
        if identity.origin_client != "-":
            made |= {"origin_client": identity.origin_client, "origin_gateway": identity.origin_gateway}
        if exchange.grpc_status >= 0:
            made["grpc_status"] = GRPC_NAMES[exchange.grpc_status]
        if exchange.would_deny:
            made["would_deny"] = [reason.value for reason in exchange.would_deny]
        if fields := exchange.state.get(self._extra_fields):
            made["fields"] = fields
        asked, answered = exchange.state.get(self._asked), exchange.state.get(self._answered)
        if asked is not None:
            made |= {"model": asked.models} if asked.models else {}
            made |= {"tools_offered": asked.offered} if asked.offered else {}
        if answered is not None and answered.models:
            made["response_model"] = answered.models
        called = [name for seen in (asked, answered) if seen is not None for name in seen.called]
        if called:
            made["tools_called"] = list(dict.fromkeys(called))
        if (usage := usage_told(exchange)) is not None:
            made["tokens"] = usage._asdict()
        for name, seen in (("request_body", asked), ("response_body", answered)):
            if seen is not None:
                made[name] = seen.to_dict(self._redactor)
        return made


AUDIT = FilterType(
    name="egressproxy.io/Audit:v1",
    phases=frozenset((Phase.REQUEST_HEADERS,)),
    config_model=AuditConfig,
    build=Audit,
    also=frozenset((Phase.REQUEST_BODY, Phase.RESPONSE_BODY)),
    machine_field=lambda _config: "folder",
    machine_problem=folder_problem,
    summary="Writes a record of each exchange into hash-chained files, which `egressproxy audit verify` checks.",
)
