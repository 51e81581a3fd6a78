"""CredentialInjector: puts the gateway's own credential into the request, once per attempt, only for this backend.

The client's own credential fields are removed first, in every spelling that an origin may take for the same field
(`X_Api_Key`). If the backend is not reached over TLS, or the Secret is missing, nothing is sent. With `scrubResponses`
the value is masked in the response. That needs a readable body: the request asks for `Accept-Encoding: identity` and
for no ranges or deltas, and a response that is not known to be plain, or is upgraded, ends with 502.

The operator configures this for the origin: by itself a proxy must not change Authorization (RFC 9110 section 11.6.2).
"""

from __future__ import annotations

from dataclasses import dataclass
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

#: The fields in which clients of common APIs send their keys.
CREDENTIAL_FIELDS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")

#: Requests with these get bodies that cannot be searched (RFC 9110 sections 12.5.3, 14.2; RFC 3229; gRPC over HTTP2).
_SCRUB_FIELDS = every_spelling(("accept-encoding", "range", "if-range", "a-im", "grpc-accept-encoding"))
#: These say how the body of a response is coded: Content-Encoding, IM of RFC 3229, and that of the messages of gRPC.
_CODINGS = every_spelling(("content-encoding", "im", "grpc-encoding"))
_SCRUB_BLOCK = b"\r\naccept-encoding: identity"


def _template(text: str) -> str:
    if text.count("{}") != 1:
        raise ValueError(f"{text!r} has to contain {{}} exactly once, where the secret goes")
    return text


@dataclass(frozen=True, slots=True)
class CredentialInjectorConfig(FilterConfig):
    """`header` or `query` names where the value goes; `{}` in `template` is replaced by the secret.

    Without either it goes into `Authorization`, with the template `Bearer {}` (RFC 6750 section 2.1) unless another is
    given. With one of them the default template is `{}`.
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
    """Building it raises ValueError for a secret that a field cannot have. If the secret is missing, requests fail."""

    keeps_length = True

    def __init__(self, context: FilterContext) -> None:
        config: CredentialInjectorConfig = context.config
        self._name = context.name
        self._source = context.source
        self._remedy = _remedy(config.secret_ref)
        label = config.secret_ref.label
        self._allow_plaintext = config.allow_plaintext
        self._query = config.query.encode()
        self._held = f"credential {id(self)}"
        names: tuple[str, ...] = () if config.keep_client_credentials else CREDENTIAL_FIELDS
        if config.header:
            names = (*names, config.header)
        self._cut = every_spelling(names) if names else None
        self._value: SecretBytes | None = None
        self._mask: Mask | None = None
        self.runs_in = frozenset((Phase.BACKEND_REQUEST,))
        # A Secret that was written with an editor ends in a newline.
        raw = context.secrets.get(label, SecretBytes(b"")).reveal().rstrip(b" \t\r\n")
        if not raw:
            return
        rendered = config.template.encode().replace(b"{}", raw)
        if not VALUE.fullmatch(rendered):
            raise ValueError(
                f"the secret {label} cannot be sent in a field: it contains a control character (CR, LF …)"
            )
        if config.header:
            self._value = SecretBytes(b"\r\n%s: %s" % (config.header.encode(), rendered))
        else:
            self._value = SecretBytes(self._query + b"=" + quote(rendered, safe="").encode())
        if config.scrub_responses:
            try:
                # A short secret is masked together with the text of the template.
                self._mask = Mask(SecretBytes(raw if len(raw) >= MIN_SECRET else rendered))
            except ValueError as error:
                raise ValueError(f"scrubResponses cannot work with the secret {label}: {error}") from None
            self.runs_in = frozenset((Phase.BACKEND_REQUEST, Phase.BACKEND_RESPONSE, Phase.RESPONSE_BODY))

    def backend_request(self, x: Exchange) -> None:
        """Sends the credential. Raises GatewayFault(CREDENTIAL_MISSING, 503) and Denied(PLAINTEXT_CREDENTIAL, 403)."""
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
            f"backend {x.backend} is not reached over TLS, and filter {self._name} sends its credential over TLS only",
            rule=self._source,
            remedy="add `tls` to the Backend, or `allowPlaintext: true` to the filter's config",
        )

    def backend_response(self, x: Exchange) -> None:
        """Masks the head. Raises UpstreamFault(BAD_RESPONSE, 502) if the body cannot be masked."""
        assert self._mask is not None
        response = x.response
        if response.status == 101 or (response.body != 0 and _is_coded(response.fields)):
            raise UpstreamFault(
                Reason.BAD_RESPONSE,
                f"backend {x.backend} sent a body in which filter {self._name} cannot mask its credential",
                rule=self._source,
                remedy="set `scrubResponses: false` for this backend, or have it send bodies without a content coding",
            )
        response.fields.block = self._mask.apply(response.fields.block)
        response.phrase = self._mask.apply(response.phrase)
        response.via = self._mask.apply(response.via)  # the gateway writes Via itself, so it is not among the fields

    def response_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        """Masks the body; holds back only an end that may be the beginning of the credential."""
        assert self._mask is not None
        held = b"" if x.notes is None else x.notes.get(self._held, b"")
        data, keep = self._mask.feed(held, data, last)
        if keep or held:
            x.note(self._held, keep)
        return data

    def __repr__(self) -> str:
        return f"CredentialInjector({self._name}, {'ready' if self._value else 'secret missing'})"


def _is_coded(fields: Fields) -> bool:
    """Whether any Content-Encoding or IM line is not exactly `identity`; lists and empty values are not."""
    lines = _CODINGS.findall(fields.block)
    return any(line.partition(b":")[2].strip(b" \t").lower() != b"identity" for line in lines)


def _with_parameter(target: bytes, name: bytes, parameter: bytes) -> bytes:
    """The target with this (encoded) parameter instead of every one of that name, in any encoding and case, also behind
    ";", which some origins read as "&".
    """
    path, _, query = target.partition(b"?")
    name = name.lower()
    if query and b"%" not in query and name not in query.lower():
        return target + b"&" + parameter
    kept = (b";".join(part for part in pair.split(b";") if _parameter_name(part) != name) for pair in query.split(b"&"))
    return path + b"?" + b"&".join([*filter(None, kept), parameter])


def _parameter_name(part: bytes) -> bytes:
    name = part.partition(b"=")[0]
    return (unquote_to_bytes(name) if b"%" in name else name).lower()


def _remedy(ref: SecretRef) -> str:
    with_key = f" with the key {ref.key}" if ref.key else ""
    there = f" in namespace {ref.namespace}" if ref.namespace else ""
    granted = ", and a ReferenceGrant for it there" if ref.namespace else ""
    return f"create the Secret {ref.name}{with_key}{there}{granted}"


CREDENTIAL_INJECTOR = FilterType(
    name="egressproxy.io/CredentialInjector:v1",
    phases=frozenset((Phase.BACKEND_REQUEST,)),
    config_model=CredentialInjectorConfig,
    build=CredentialInjector,
    also=frozenset((Phase.BACKEND_RESPONSE, Phase.RESPONSE_BODY)),
    secret_refs=lambda config: (config.secret_ref,),
    summary="Puts a credential into the request to a backend, over TLS only.",
)
