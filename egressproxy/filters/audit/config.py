"""The config of Audit."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from egressproxy.filters.audit.chain_writer import ChainSettings
from egressproxy.filters.settings import FieldName, FilterConfig, SecretRef, Within
from egressproxy.ir.policy import FieldFault
from egressproxy.model.secret import SecretBytes

#: Fields whose values are credentials, or may be: they are in no record.
_NEVER = frozenset((
    "authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key", "x-goog-api-key",
    "x-amz-security-token", "x-amz-signature", "x-auth-token", "authentication-info", "x-csrf-token",
))  # fmt: skip
#: A key that can be guessed is none.
_MIN_KEY_BYTES = 32


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
    sync: Literal["Always", "Interval", "Never"] = "Interval"
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


def secret_refs(config: Any) -> tuple[SecretRef, ...]:
    """The Secrets of a config."""
    return (config.key_ref,) if config.key_ref is not None else ()


def folder_problem(config: Any) -> str:
    """Why this process cannot write to the folder; "" where it can."""
    folder = config.folder
    if not os.path.isdir(folder):
        return f"{folder} is no folder of this machine: create it, for the user of the gateway alone"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} cannot be written to by this user: give it to the user of the gateway"
    return ""
