"""Signatures of requests, as they are written in a manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from egressproxy.filters.header_policy import is_protected
from egressproxy.filters.settings import Checked, DocumentRef, FieldName, FilterConfig, SecretRef, Within
from egressproxy.ir.policy import MAX_BUFFERED_BYTES, FieldFault

if TYPE_CHECKING:  # few configurations have a signature
    from egressproxy.filters.credentials.signature_template import Template

#: A string of RFC 8941.
_Printable = Annotated[str, Within(max_length=2048, pattern=r"^[\x20-\x7e]*$")]
_Encoding = Literal["Text", "Hex", "Base64"]


def _parsed(text: str) -> Template:
    from egressproxy.filters.credentials.signature_template import Template

    return Template(text)


def _template(text: str) -> str:
    _parsed(text)
    return text


def _value(text: str) -> str:
    if "body" in _parsed(text).variables:
        raise ValueError("a field cannot have the {body}: write a hash of it, such as {body.sha256.base64}")
    if not text.isprintable() or text != text.strip():
        raise ValueError("a field has no control characters, and no blanks around its value")
    return text


@dataclass(frozen=True, slots=True)
class SignedField(FilterConfig):
    """A field that is added, and its value, a template."""

    name: FieldName
    value: Annotated[str, Checked(_value), Within(min_length=1, max_length=4096)]

    def __post_init__(self) -> None:
        if is_protected(self.name):
            raise FieldFault(f"{self.name} is written by the gateway itself and cannot carry a signature", "name")


@dataclass(frozen=True, slots=True)
class Hmac(FilterConfig):
    """Signs requests with HMAC: `message` is what is signed, `fields` are what is added to the request.

    Both are templates: {method}, {scheme}, {host}, {target}, {path}, {query}, {timestamp} (seconds; {timestamp.ms},
    {timestamp.rfc3339}, {timestamp.http}), {nonce}, {header.NAME}, {body}, {body.sha256.hex} (md5, sha1, sha384,
    sha512; base64, base64url), and in fields {signature} (in hexadecimal; {signature.base64}, {signature.base64url}).
    Where the body is used, at most `maxBodyBytes` of it are collected.
    """

    secret_ref: SecretRef
    message: Annotated[str, Checked(_template), Within(min_length=1, max_length=4096)]
    fields: Annotated[tuple[SignedField, ...], Within(min_length=1, max_length=16)]
    secret_encoding: _Encoding = "Text"  # noqa: S105
    algorithm: Literal["SHA1", "SHA256", "SHA384", "SHA512"] = "SHA256"
    max_body_bytes: Annotated[int, Within(ge=1, le=1 << 30)] = MAX_BUFFERED_BYTES

    def __post_init__(self) -> None:
        if _parsed(self.message).has_signature:
            raise FieldFault("a message does not contain its own signature: remove it", "message")
        if not any(_parsed(each.value).has_signature for each in self.fields):
            raise FieldFault("no field has the {signature}: write it into one of them", "fields")
        names = [each.name.lower().replace("_", "-") for each in self.fields]
        if len(set(names)) < len(names):
            raise FieldFault("a field stands there twice: keep one", "fields")


@dataclass(frozen=True, slots=True)
class HttpSignature(FilterConfig):
    """Signs requests as RFC 9421 says, with `privateKeyRef`, or with `sharedSecretRef` (hmac-sha256).

    `components` are what is signed: @method, @scheme, @authority, @target-uri, @request-target, @path, @query,
    @query-param;name="NAME", and fields in lower case; of those the request may lack some. With content-digest the
    gateway writes that field itself, and at most `maxBodyBytes` of the body are collected for that.
    """

    private_key_ref: DocumentRef | None = None
    shared_secret_ref: SecretRef | None = None
    secret_encoding: _Encoding = "Text"  # noqa: S105
    algorithm: (
        Literal[
            "rsa-pss-sha512", "rsa-v1_5-sha256", "ecdsa-p256-sha256", "ecdsa-p384-sha384", "ed25519", "hmac-sha256"
        ] | None
    ) = None  # fmt: skip
    components: Annotated[tuple[str, ...], Within(max_length=64)] = (
        "@method", "@authority", "@path", "@query", "content-digest"
    )  # fmt: skip
    label: Annotated[str, Within(max_length=64, pattern=r"^[a-z*][a-z0-9_.*-]*$")] = "sig1"
    key_id: _Printable = ""
    tag: _Printable = ""
    expires_seconds: Annotated[int, Within(ge=0, le=86400)] = 0
    nonce: bool = False
    digest: Literal["sha-256", "sha-512"] = "sha-256"
    max_body_bytes: Annotated[int, Within(ge=1, le=1 << 30)] = MAX_BUFFERED_BYTES

    def __post_init__(self) -> None:
        if (self.private_key_ref is None) == (self.shared_secret_ref is None):
            raise ValueError("requests are signed with one of `privateKeyRef` and `sharedSecretRef`: write one of them")
        if self.algorithm is not None and (self.algorithm == "hmac-sha256") != (self.shared_secret_ref is not None):
            raise ValueError("hmac-sha256 needs `sharedSecretRef`, every other algorithm needs `privateKeyRef`")
        from egressproxy.filters.credentials.http_signature import identifier

        for index, each in enumerate(self.components):
            try:
                identifier(each)
            except ValueError as error:
                raise FieldFault(str(error), "components", index) from None
            if each in self.components[:index]:
                raise FieldFault(f"{each} stands there twice: keep one (RFC 9421 section 2)", "components", index)
            if is_protected(each) or each in ("signature", "signature-input"):
                raise FieldFault(
                    f"{each} is written by the gateway after it has signed: remove it", "components", index
                )
