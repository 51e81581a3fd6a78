"""CredentialInjector: puts the gateway's own credential into the request, once per attempt, only for this backend.

The client's own credential fields are removed first, in every spelling that an origin may take for the same field
(`X_Api_Key`). If the backend is not what the credential is bound to (TLS, `bind`), or there is no value, nothing is
sent. With `scrubResponses` the value is masked in the response. That needs a readable body: the request asks for
`Accept-Encoding: identity` and for no ranges or deltas; one coding that comes all the same is undone, and a response
that cannot be read for certain, or is upgraded, ends with 502.

The operator configures this for the origin: by itself a proxy must not change Authorization (RFC 9110 section 11.6.2).
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from typing import Final

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.filters.base import FilterContext, OfMessages, Phase, UnusableReference
from egressproxy.filters.content_coding import CODINGS
from egressproxy.filters.credentials.backend_credential import (
    CREDENTIAL_PARAMETERS,
    BackendCredential,
    Placement,
    client_credentials,
    with_parameter,
    without_key_protocols,
    without_parameters,
)
from egressproxy.filters.credentials.config import CredentialInjectorConfig
from egressproxy.filters.credentials.refresher import Fetched
from egressproxy.filters.masking import MIN_SECRET, Mask
from egressproxy.filters.messages import are_read
from egressproxy.filters.settings import SecretRef
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.fields import CREDENTIAL_FIELDS, Fields, every_spelling
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.secret import SecretBytes

#: Requests with these get bodies that cannot be searched (RFC 9110 sections 12.5.3, 14.2; RFC 3229; gRPC over HTTP2).
#: Request-Range is what Apache takes for Range.
_SCRUB_FIELDS = ("accept-encoding", "range", "if-range", "request-range", "a-im", "grpc-accept-encoding")
#: These say how the body of a response is coded: Content-Encoding, IM of RFC 3229, and that of the messages of gRPC.
_CODINGS = every_spelling(("content-encoding", "im", "grpc-encoding"))
_SCRUB_BLOCK = b"\r\naccept-encoding: identity"
#: What editors and programs leave at the end of a value.
_SPACE: Final = b" \t\r\n"
_NO_FIELD: Final = re.compile(rb"(?!)")
_NOTHING: Final = SecretBytes(b"")


class CredentialInjector(BackendCredential):
    """Building it raises UnusableReference for a value that a field cannot have. Without a value, requests fail."""

    keeps_length = True
    of_messages = OfMessages.READS
    _shown = b""  # in responses instead of the value; b"": as many asterisks

    def __init__(self, context: FilterContext) -> None:
        config: CredentialInjectorConfig = context.config
        super().__init__(context, _remedy(config))
        self._query = config.query.encode()
        self._held: StateSlot[bytes] = StateSlot("credential")
        self._keeps_others = config.keep_client_credentials
        names: tuple[str, ...] = () if self._keeps_others else CREDENTIAL_FIELDS
        if not config.query:
            names = (*names, config.header or "Authorization")
        if config.scrub_responses:
            names = (*names, *_SCRUB_FIELDS)
        if self._keeps_others:
            self._cut = every_spelling(names) if names else _NO_FIELD
        else:
            self._cut = client_credentials(names)
        self._more = SecretBytes(_SCRUB_BLOCK if config.scrub_responses else b"")
        self._lines = self._parameter = _NOTHING
        self._mask: Mask | None = None
        self._masked: SecretBytes | None = None
        self._scrubs = config.scrub_responses
        self.runs_in = frozenset((Phase.BACKEND_REQUEST,))
        self.decodes = self.asks_for_plain = self._scrubs
        if self._scrubs:
            self.runs_in |= {Phase.BACKEND_RESPONSE, Phase.RESPONSE_BODY}
        user = None
        if config.basic is not None and config.basic.username_ref is not None:
            user = context.secrets.get(config.basic.username_ref.label)
            if user is None:
                self._remedy = _secret_remedy(config.basic.username_ref)
                return
            user = SecretBytes(user.reveal().rstrip(_SPACE))
        self._placement = Placement(config, user)
        fetch = _fetch(config, context)
        if fetch is not None:
            self._fetch_by(fetch)
            return
        what, raw = _static(config, context)
        if raw.strip(_SPACE):
            try:
                self._keep(raw)
            except ValueError as error:
                raise UnusableReference(f"{what} {error}", config.secret_ref) from None

    def _take(self, value: object) -> None:
        assert isinstance(value, bytes)
        raw = value.rstrip(_SPACE)
        rendered = self._placement.render(raw)
        if self._scrubs:
            # A short secret is masked together with the text of the template.
            text = SecretBytes(raw if len(raw) >= MIN_SECRET else self._placement.text(raw))
            # What went out a moment ago may still come back.
            before = (self._masked,) if self._masked is not None else ()
            try:
                self._mask = Mask(text, *before, shown=self._shown)
            except ValueError as error:
                raise ValueError(f"cannot be found by scrubResponses: {error}") from None
            self._masked = text
        if self._query:
            self._parameter, self._lines = rendered, self._more
        else:
            self._lines = SecretBytes(rendered.reveal() + self._more.reveal())

    def _forget(self) -> None:
        self._lines = self._parameter = _NOTHING

    def backend_request(self, exchange: Exchange) -> Awaitable[LocalResponse | None] | None:
        """Sends the credential. Raises GatewayFault(CREDENTIAL_MISSING, 503), and Denied (403) as `BackendBinding`."""
        if exchange.backend_origin is not self._approved:
            waiting = self._unready(exchange)
            if waiting is not None:
                return waiting
        fields = exchange.request.fields
        if not self._keeps_others:
            if b"?" in exchange.request.path:
                exchange.request.path = without_parameters(exchange.request.path, CREDENTIAL_PARAMETERS)
            if exchange.request.upgrade:
                without_key_protocols(fields)
        fields.cut(self._cut)
        fields.block += self._lines.reveal()
        if self._query:
            exchange.request.path = with_parameter(exchange.request.path, self._query, self._parameter.reveal())
        return None

    def backend_response(self, exchange: Exchange) -> None:
        """Masks the head. Raises UpstreamFault(BAD_RESPONSE, 502) if the body cannot be masked."""
        mask = self._mask
        if mask is None:
            return
        response = exchange.response
        is_unseen = response.status == 101 and not are_read(exchange)
        if is_unseen or (response.body != 0 and _is_coded(response.fields)):
            raise UpstreamFault(
                Reason.BAD_RESPONSE,
                f"backend {exchange.backend} sent a body in which filter {self._name} cannot mask its credential",
                rule=self._source,
                remedy="set `scrubResponses: false` for this backend, or have it send bodies without a content coding",
            )
        response.fields.block = mask.apply(response.fields.block)
        response.phrase = mask.apply(response.phrase)
        response.via = mask.apply(response.via)  # the gateway writes Via itself, so it is not among the fields

    def response_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes:
        """Masks the body; holds back only an end that may be the beginning of the credential."""
        if self._mask is None:
            return data
        held = exchange.state.get(self._held) or b""
        data, keep = self._mask.feed(held, data, last)
        if keep or held:
            exchange.keep(self._held, keep)
        return data


def _is_coded(fields: Fields) -> bool:
    """Whether a line says a coding that is not undone for `response_body`: what is, is one coding in one line, or none.

    Lists, empty values, other spellings of the names, IM and codings of messages of gRPC are not.
    """
    lines = _CODINGS.findall(fields.block)
    values = [line.partition(b":")[2].strip(b" \t").lower() for line in lines]
    if len(lines) == 1 and values[0] in CODINGS and b"content-encoding" in fields:
        return False
    return any(value != b"identity" for value in values)


def _static(config: CredentialInjectorConfig, context: FilterContext) -> tuple[str, bytes]:
    """A value that is there when the filter is built, and what it is, for people; b"" where it is missing."""
    if config.secret_ref is not None:
        label = config.secret_ref.label
        return f"the secret {label}", context.secrets.get(label, SecretBytes(b"")).reveal()
    return f"the environment variable {config.env}", os.environb.get(config.env.encode(), b"")


def _fetch(config: CredentialInjectorConfig, context: FilterContext) -> Callable[[], Awaitable[Fetched]] | None:
    """What fetches a value that changes; None for one that does not. Raises UnusableReference, ValueError."""
    # Here, since few filters have such a source.
    if config.file or config.command is not None:
        from egressproxy.filters.credentials import local_sources

        if config.command is not None:
            return local_sources.from_command(config.command)
        return local_sources.from_file(context.folder, config.file)
    if config.oauth2 is not None:
        from egressproxy.filters.credentials.oauth2 import from_oauth2

        return from_oauth2(context, config.oauth2)
    if config.jwt is not None and not config.jwt.is_of_caller:
        from egressproxy.filters.credentials.jwt_source import from_jwt

        return from_jwt(context, config.jwt)
    if config.github_app is not None:
        from egressproxy.filters.credentials.github_app import from_github_app

        return from_github_app(context, config.github_app)
    if config.vault is not None:
        from egressproxy.filters.credentials.vault import from_vault

        return from_vault(context, config.vault)
    if config.gcp is not None:
        from egressproxy.filters.credentials.google import from_gcp

        return from_gcp(context, config.gcp)
    return None


def _remedy(config: CredentialInjectorConfig) -> str:
    if config.secret_ref is not None:
        return _secret_remedy(config.secret_ref)
    if config.env:
        return f"start the gateway with the environment variable {config.env}"
    if config.file:
        return f"write the credential into {config.file}, beside the manifest"
    return "the access log has the reason"


def _secret_remedy(ref: SecretRef) -> str:
    with_key = f" with the key {ref.key}" if ref.key else ""
    there = f" in namespace {ref.namespace}" if ref.namespace else ""
    granted = ", and a ReferenceGrant for it there" if ref.namespace else ""
    return f"create the Secret {ref.name}{with_key}{there}{granted}"
