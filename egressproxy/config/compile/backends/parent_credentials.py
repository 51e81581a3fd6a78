"""Credentials for a parent. Sources: RFC 7617 (Basic), RFC 1929 (SOCKS5), Secrets of type kubernetes.io/basic-auth."""

from __future__ import annotations

import base64
import re

from egressproxy.config.compile.references import References, UnresolvedRef
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.parent import ParentProxyRef
from egressproxy.ir.backend import BackendIR, ParentCredentials, Protocol
from egressproxy.model.forwarded_identity import MIN_KEY_BYTES
from egressproxy.model.secret import SecretBytes

#: RFC 7617 section 2: neither part may hold a control character.
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_MAX_COUNTED = 255


def parent_credentials(
    references: References, source: Resource, ref: ParentProxyRef, parent: BackendIR
) -> ParentCredentials | None:
    """The credentials of `source` for its parent, or None. Raises UnresolvedRef, also for forbidden plain text."""
    secret = ref.credentials_ref
    if secret is None:
        return None
    name = references.names(source, (secret,))
    if secret.group or secret.kind != "Secret":
        raise UnresolvedRef("InvalidKind", f"parent.credentialsRef of {source}: {name} is not a Secret")
    user = _part(references.data(source, secret, "username"), name, "username")
    password = _part(references.data(source, secret, "password"), name, "password")
    if b":" in user and parent.protocol is not Protocol.SOCKS5:
        raise UnresolvedRef("InvalidCredentials", f"{name}: username holds a colon, which Basic cannot carry")
    if parent.tls is None and not ref.allow_plaintext:
        raise UnresolvedRef(
            "PlaintextCredentials",
            f"the credentials of {source} for its parent {parent.name} would go there in plain text: give the parent's "
            "port tls, or write allowPlaintext: true beside parent.credentialsRef",
        )
    if parent.protocol is Protocol.SOCKS5:
        return ParentCredentials(
            SecretBytes(b"\x01" + _counted(user, name, "username") + _counted(password, name, "password")), name
        )
    return ParentCredentials(SecretBytes(b"Basic " + base64.b64encode(user + b":" + password)), name)


def identity_key(
    references: References, source: Resource, ref: ParentProxyRef, parent: BackendIR
) -> SecretBytes | None:
    """The key of `parent.identityKeyRef`, or None. Raises UnresolvedRef."""
    secret = ref.identity_key_ref
    if secret is None:
        return None
    name = references.names(source, (secret,))
    if secret.group or secret.kind != "Secret":
        raise UnresolvedRef("InvalidKind", f"parent.identityKeyRef of {source}: {name} is not a Secret")
    if parent.protocol is Protocol.SOCKS5:
        message = f"parent.identityKeyRef of {source}: SOCKS5 ({parent.name}) has no place for X-Egress-Identity"
        raise UnresolvedRef("UnsupportedValue", message, "remove identityKeyRef")
    return checked_key(references.data(source, secret, "key"), name)


def checked_key(value: bytes, name: str) -> SecretBytes:
    """The key from the entry `key` of a Secret. Raises UnresolvedRef if it is too short."""
    if len(value) < MIN_KEY_BYTES:
        message = f"{name}: key has {len(value)} bytes, and needs {MIN_KEY_BYTES} or more: openssl rand -hex 32"
        raise UnresolvedRef("InvalidCredentials", message)
    return SecretBytes(value)


def _counted(value: bytes, name: str, key: str) -> bytes:
    """The value with its length as prefix. Source: RFC 1929 section 2."""
    if not 0 < len(value) <= _MAX_COUNTED:
        message = f"{name}: {key} has {len(value)} bytes, and SOCKS5 takes 1 to {_MAX_COUNTED} (RFC 1929)"
        raise UnresolvedRef("InvalidCredentials", message)
    return b"%c%b" % (len(value), value)


def _part(value: bytes, name: str, key: str) -> bytes:
    """The value without a trailing line end."""
    value = value.removesuffix(b"\n").removesuffix(b"\r")
    if _CONTROL.search(value):
        raise UnresolvedRef("InvalidCredentials", f"{name}: {key} holds a control character (CR, LF or the like)")
    return value
