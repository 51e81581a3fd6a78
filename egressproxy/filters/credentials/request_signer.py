"""RequestSigner: signs the request to a backend, once per attempt, as it goes out: after every other filter.

The client's own signature is removed first: fields of the same names in every spelling. What the gateway adds later
(Via, framing) is not signed.
"""

from __future__ import annotations

import asyncio
import hmac
from base64 import b64decode, b64encode
from collections.abc import Awaitable
from typing import Final, Protocol

from egressproxy.errors import Denied, Reason
from egressproxy.filters.base import FilterContext, OfMessages, Phase, UnusableReference
from egressproxy.filters.credentials.backend_credential import (
    CREDENTIAL_PARAMETERS,
    BackendCredential,
    client_credentials,
    without_key_protocols,
    without_parameters,
)
from egressproxy.filters.credentials.config import CredentialInjectorConfig
from egressproxy.filters.credentials.http_signature import ALGORITHMS, content_digest, signature_base
from egressproxy.filters.credentials.oauth2 import secret_of
from egressproxy.filters.credentials.signature_config import Hmac, HttpSignature
from egressproxy.filters.credentials.signature_template import Template
from egressproxy.filters.credentials.signed_request import SignedRequest
from egressproxy.filters.credentials.signing_key import Signer, private_signer, shared_signer
from egressproxy.filters.settings import SecretRef
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import CREDENTIAL_FIELDS, every_spelling
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.secret import SecretBytes

#: A longer body is hashed in a thread, in bytes: this takes about a millisecond.
SIGNED_AT_ONCE: Final = 512 * 1024
#: The names that RFC 9421 has, by those of RFC 7518.
_NAMES: Final = {name: written for written, name in ALGORITHMS.items()}


class _Scheme(Protocol):
    """`names` are the fields that `sign` adds to a request; it raises ValueError for one that cannot be signed."""

    names: tuple[str, ...]
    needs_body: bool

    def signer(self, secret: SecretBytes) -> Signer:
        """What signs with this value of the Secret. Raises ValueError for one that does not fit."""

    def sign(self, request: SignedRequest, signer: Signer) -> None: ...


class RequestSigner(BackendCredential):
    """The value is a Signer. Building it raises UnusableReference for a Secret that does not fit."""

    keeps_length = True
    signs_request = True
    of_messages = OfMessages.HEAD

    def __init__(self, context: FilterContext) -> None:
        config: CredentialInjectorConfig = context.config
        if config.hmac is not None:
            self._scheme: _Scheme = _HmacScheme(config.hmac)
            field, ref = "hmac.secretRef", config.hmac.secret_ref
            self.max_buffer_bytes = config.hmac.max_body_bytes
        else:
            signature = config.http_signature
            assert signature is not None
            self._scheme = _HttpScheme(signature)
            field, ref = "httpSignature", _key_ref(signature)
            self.max_buffer_bytes = signature.max_body_bytes
        super().__init__(context, f"create the Secret that {field} names")
        self.needs_body = self._scheme.needs_body
        self.runs_in = frozenset((Phase.BACKEND_REQUEST,))
        self._keeps_others = config.keep_client_credentials
        names = self._scheme.names
        self._cut = every_spelling(names) if self._keeps_others else client_credentials((*CREDENTIAL_FIELDS, *names))
        self._signer: Signer | None = None
        secret = secret_of(context, ref)
        if secret is None:
            return
        try:
            self._keep(self._scheme.signer(secret))
        except ValueError as error:
            raise UnusableReference(f"the secret {ref.label} cannot sign: {error}", ref) from None

    def _take(self, value: object) -> None:
        self._signer = value  # type: ignore[assignment]

    def _forget(self) -> None:
        self._signer = None

    def backend_request(self, exchange: Exchange) -> Awaitable[LocalResponse | None] | None:
        """Signs the request. Raises as BackendCredential; Denied(FILTER_REJECTED, 403) where it cannot be signed."""
        if exchange.backend_origin is not self._approved:
            waiting = self._unready(exchange)
            if waiting is not None:
                return waiting
        assert self._signer is not None
        head = exchange.request
        if not self._keeps_others:
            if b"?" in head.path:
                head.path = without_parameters(head.path, CREDENTIAL_PARAMETERS)
            if head.upgrade:
                without_key_protocols(head.fields)
        head.fields.cut(self._cut)
        body = exchange.body or b""
        request = SignedRequest(
            head.method, exchange.upstream_host, head.path, head.fields, body, exchange.backend_is_secure
        )
        if len(body) > SIGNED_AT_ONCE:
            return self._sign_aside(request, self._signer)
        self._sign(request, self._signer)
        return None

    async def _sign_aside(self, request: SignedRequest, signer: Signer) -> None:
        await asyncio.to_thread(self._sign, request, signer)

    def _sign(self, request: SignedRequest, signer: Signer) -> None:
        try:
            self._scheme.sign(request, signer)
        except ValueError as error:
            raise Denied(
                Reason.FILTER_REJECTED,
                f"filter {self._name} cannot sign this request: {error}",
                rule=self._source,
                remedy="send what is signed once, and without control characters",
            ) from None


class _HmacScheme:
    def __init__(self, config: Hmac) -> None:
        self.names = tuple(each.name for each in config.fields)
        self._message = Template(config.message)
        fields = [(each.name.encode(), Template(each.value)) for each in config.fields]
        #: First what may be signed itself, such as the time.
        self._before = [each for each in fields if not each[1].has_signature]
        self._after = [each for each in fields if each[1].has_signature]
        self._hash = config.algorithm.lower()
        self._encoding = config.secret_encoding
        self.needs_body = self._message.needs_body or any(template.needs_body for _, template in fields)

    def signer(self, secret: SecretBytes) -> Signer:
        key = SecretBytes(_decoded(secret, self._encoding))
        return lambda text: hmac.digest(key.reveal(), text, self._hash)

    def sign(self, request: SignedRequest, signer: Signer) -> None:
        for name, template in self._before:
            request.fields.add(name, template.render(request))
        signature = signer(self._message.render(request))
        for name, template in self._after:
            request.fields.add(name, template.render(request, signature))


class _HttpScheme:
    def __init__(self, config: HttpSignature) -> None:
        self._config = config
        self._label = config.label.encode()
        self.needs_body = "content-digest" in config.components
        self.names = ("signature", "signature-input", *(("content-digest",) if self.needs_body else ()))

    def signer(self, secret: SecretBytes) -> Signer:
        config = self._config
        if config.shared_secret_ref is not None:
            return shared_signer(SecretBytes(_decoded(secret, config.secret_encoding)))
        name, made = private_signer(secret, ALGORITHMS[config.algorithm] if config.algorithm else "", _NAMES)
        if name == "RS256" and config.algorithm is None:
            name, made = private_signer(secret, "PS512")  # what RFC 9421 has first for RSA
        return made

    def sign(self, request: SignedRequest, signer: Signer) -> None:
        config, created = self._config, int(request.now)
        if self.needs_body:
            request.fields.add(b"content-digest", content_digest(request.body, config.digest))
        parameters: dict[str, int | str] = {"created": created}
        if config.expires_seconds:
            parameters["expires"] = created + config.expires_seconds
        named = {"keyid": config.key_id, "nonce": request.nonce.decode() if config.nonce else "", "tag": config.tag}
        parameters |= {name: value for name, value in named.items() if value}
        base, told = signature_base(request, config.components, parameters)
        request.fields.add(b"signature-input", self._label + b"=" + told)
        request.fields.add(b"signature", b"%s=:%s:" % (self._label, b64encode(signer(base))))


def _key_ref(config: HttpSignature) -> SecretRef:
    ref = config.private_key_ref or config.shared_secret_ref
    assert ref is not None
    return ref


def _decoded(secret: SecretBytes, encoding: str) -> bytes:
    """The bytes of a shared secret. Raises ValueError."""
    raw = secret.reveal()
    try:
        if encoding != "Text":
            raw = bytes.fromhex(raw.decode("ascii")) if encoding == "Hex" else b64decode(raw, validate=True)
    except ValueError:
        raise ValueError(f"it is not written in {encoding.lower()}") from None
    if not raw:
        raise ValueError("it is empty")
    return raw
