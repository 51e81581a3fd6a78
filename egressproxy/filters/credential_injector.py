"""CredentialInjector: puts the gateway's own credential into the request, once per attempt, for this backend alone.

What the client sent in the fields where credentials travel is removed first, in every spelling that an origin may take
for the same field (`X_Api_Key`). The value is bound to the backend: where that is not reached over TLS, nothing is
sent. A secret that is missing fails closed. With `scrubResponses` the value is masked in what the upstream sends back;
that needs a body which can be read, so `Accept-Encoding: identity` is asked for, ranges and deltas are not, and a
response that is not known to be plain, or is upgraded, ends with 502.

This is a configured role of the origin side: a proxy must not change Authorization by itself (RFC 9110 section 11.6.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Annotated, Literal
from urllib.parse import quote, unquote_to_bytes

from egressproxy.errors import Denied, GatewayError, GatewayFault, Reason, UpstreamFault
from egressproxy.filters.base import Filter, FilterContext, FilterType, Phase
from egressproxy.filters.header_policy import is_protected
from egressproxy.filters.masking import MIN_SECRET, Mask
from egressproxy.filters.settings import Checked, FieldName, FieldValue, FilterConfig, SecretRef, Within
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import VALUE, Fields, every_spelling
from egressproxy.model.secret import SecretBytes

__all__ = ["CREDENTIAL_INJECTOR", "CredentialInjector", "CredentialInjectorConfig"]

#: Where clients of the APIs that are used through an egress gateway put their keys.
CREDENTIAL_FIELDS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")

#: What would have an upstream send a body in which nothing can be found (RFC 9110 sections 12.5.3, 14.2; RFC 3229).
_SCRUB_FIELDS = every_spelling(("accept-encoding", "range", "if-range", "a-im"))
#: What says in an answer how its body was coded: Content-Encoding, and IM of RFC 3229.
_CODINGS = every_spelling(("content-encoding", "im"))
_SCRUB_BLOCK = b"\r\naccept-encoding: identity"
_instances = count()


def _template(text: str) -> str:
    if text.count("{}") != 1:
        raise ValueError(f"{text!r} has to hold {{}} exactly once: the secret's place")
    return text


@dataclass(frozen=True, slots=True)
class CredentialInjectorConfig(FilterConfig):
    """`header` or `query` says where the value goes; `{}` in `template` is the secret's place.

    Without either it goes into `Authorization`, as a bearer token unless `template` says otherwise (RFC 6750 section
    2.1). With one of them `template` is `{}` unless it is given.
    """

    secret_ref: SecretRef
    header: FieldName | Literal[""] = ""
    query: Annotated[str, Within(pattern=r"^[A-Za-z0-9._~-]*$")] = ""
    template: Annotated[FieldValue, Checked(_template)] = ""
    allow_plaintext: bool = False
    keep_client_credentials: bool = False
    scrub_responses: bool = False

    def __post_init__(self) -> None:
        if self.header and self.query:
            raise ValueError("`header` and `query` exclude each other: keep one of them")
        if not self.template:
            object.__setattr__(self, "template", "{}" if self.header or self.query else "Bearer {}")
        if not self.header and not self.query:
            object.__setattr__(self, "header", "Authorization")
        if is_protected(self.header):
            raise ValueError(f"{self.header} is written by the gateway itself and cannot carry a credential")


class CredentialInjector(Filter):
    """Raises ValueError when it is built from a secret that a field cannot carry; a missing one fails each request."""

    keeps_length = True

    def __init__(self, context: FilterContext) -> None:
        config = context.config
        assert isinstance(config, CredentialInjectorConfig)
        self._name = context.name
        self._source = context.source
        self._remedy = _remedy(config.secret_ref)
        self._secret_name = config.secret_ref.label
        self._allow_plaintext = config.allow_plaintext
        self._query = config.query.encode()
        self._held = f"credential {next(_instances)}"
        names: tuple[str, ...] = () if config.keep_client_credentials else CREDENTIAL_FIELDS
        if config.header:
            names = (*names, config.header)
        self._cut = every_spelling(names) if names else None
        self._value: SecretBytes | None = None
        self._mask: Mask | None = None
        self.runs_in = frozenset((Phase.BACKEND_REQUEST,))
        # A Secret that was written with an editor ends with a newline.
        raw = context.secrets.get(self._secret_name, SecretBytes(b"")).reveal().rstrip(b" \t\r\n")
        if not raw:
            return
        rendered = config.template.encode().replace(b"{}", raw)
        if not VALUE.fullmatch(rendered):
            raise ValueError(f"the secret {self._secret_name} cannot stand in a field: it holds CR, LF or the like")
        if config.header:
            self._value = SecretBytes(b"\r\n%s: %s" % (config.header.encode(), rendered))
        else:
            self._value = SecretBytes(self._query + b"=" + quote(rendered, safe="").encode())
        if config.scrub_responses:
            try:
                # A short secret is looked for together with what the template puts around it.
                self._mask = Mask(SecretBytes(raw if len(raw) >= MIN_SECRET else rendered))
            except ValueError as error:
                raise ValueError(f"scrubResponses cannot work with the secret {self._secret_name}: {error}") from None
            self.runs_in = frozenset((Phase.BACKEND_REQUEST, Phase.BACKEND_RESPONSE, Phase.RESPONSE_BODY))

    def backend_request(self, x: Exchange) -> None:
        """Raises GatewayFault(CREDENTIAL_MISSING, 503) and Denied(PLAINTEXT_CREDENTIAL)."""
        if self._value is None or not (x.backend_is_secure or self._allow_plaintext):
            raise self._refusal(x)
        fields = x.request.fields
        if self._cut is not None:
            fields.cut(self._cut)
        if self._query:
            x.request.path = _with_parameter(x.request.path, self._query, self._value.reveal())
        else:
            fields.block += self._value.reveal()
        if self._mask is not None:
            fields.cut(_SCRUB_FIELDS)
            fields.block += _SCRUB_BLOCK

    def forecast(self, x: Exchange) -> None:
        """Raises as `backend_request`."""
        if self._value is None or not (x.backend_is_secure or self._allow_plaintext):
            raise self._refusal(x)

    def _refusal(self, x: Exchange) -> GatewayError:
        if self._value is None:
            return GatewayFault(
                Reason.CREDENTIAL_MISSING,
                f"the credential of {x.backend} is not available",
                status=503,
                rule=self._source,
                remedy=self._remedy,
            )
        return Denied(
            Reason.PLAINTEXT_CREDENTIAL,
            f"backend {x.backend} is not reached over TLS, and filter {self._name} sends nothing in plain text",
            rule=self._source,
            remedy="add `tls` to the Backend, or `allowPlaintext: true` to the filter's config",
        )

    def backend_response(self, x: Exchange) -> None:
        """Masks the head. Raises UpstreamFault(BAD_RESPONSE) where the body could not be masked."""
        assert self._mask is not None
        response = x.response
        if response.status == 101 or (response.body != 0 and _is_coded(response.fields)):
            raise UpstreamFault(
                Reason.BAD_RESPONSE,
                f"backend {x.backend} sent a body in which filter {self._name} cannot look for its credential",
                rule=self._source,
                remedy="switch `scrubResponses` off for this backend, or have it send bodies without content coding",
            )
        response.fields.block = self._mask.apply(response.fields.block)
        response.phrase = self._mask.apply(response.phrase)
        response.via = self._mask.apply(response.via)  # written anew by the gateway, so it is not among the fields

    def response_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        assert self._mask is not None
        held = b"" if x.notes is None else x.notes.get(self._held, b"")
        data, keep = self._mask.feed(held, data, last)
        if keep or held:
            x.note(self._held, keep)
        return data

    def __repr__(self) -> str:
        return f"CredentialInjector({self._name}, {'ready' if self._value else 'secret missing'})"


def _is_coded(fields: Fields) -> bool:
    """Whether any line of a coding says anything but `identity`: lists, unknown and empty codings do."""
    lines = _CODINGS.findall(fields.block)
    return any(line.partition(b":")[2].strip(b" \t").lower() != b"identity" for line in lines)


def _with_parameter(target: bytes, name: bytes, parameter: bytes) -> bytes:
    """The target with this (encoded) parameter in place of every one of the name: in whatever encoding or case it came,
    and behind a ";" too, which some origins take for an "&".
    """
    path, _, query = target.partition(b"?")
    name = name.lower()
    if query and b"%" not in query and name not in query.lower():
        return target + b"&" + parameter
    kept = []
    for pair in query.split(b"&"):
        if b";" in pair:
            pair = b";".join(part for part in pair.split(b";") if _parameter_name(part) != name)
        elif _parameter_name(pair) == name:
            continue
        if pair:
            kept.append(pair)
    return path + b"?" + b"&".join([*kept, parameter])


def _parameter_name(part: bytes) -> bytes:
    name = part.partition(b"=")[0]
    return (unquote_to_bytes(name) if b"%" in name else name).lower()


def _remedy(ref: SecretRef) -> str:
    with_key = f" with the key {ref.key}" if ref.key else ""
    there = f" in namespace {ref.namespace}" if ref.namespace else ""
    granted = ", and a ReferenceGrant for it there" if ref.namespace else ""
    return f"create the Secret {ref.name}{with_key}{there}{granted}"


def _secret_refs(config: object) -> tuple[SecretRef, ...]:
    assert isinstance(config, CredentialInjectorConfig)
    return (config.secret_ref,)


CREDENTIAL_INJECTOR = FilterType(
    name="egressproxy.io/CredentialInjector:v1",
    phases=frozenset((Phase.BACKEND_REQUEST,)),
    config_model=CredentialInjectorConfig,
    build=CredentialInjector,
    also=frozenset((Phase.BACKEND_RESPONSE, Phase.RESPONSE_BODY)),
    secret_refs=_secret_refs,
    summary="Puts a credential into the request to a backend, over TLS only.",
)
