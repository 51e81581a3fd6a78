"""AwsInjector: signs the request to a backend of AWS with the gateway's own keys, once per attempt.

The client's own signature is removed first: fields, and the parameters of a presigned URL. The signature covers Host,
Content-Type and every X-Amz field; fields that the gateway adds later (Via) are not covered.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Awaitable
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from egressproxy.errors import Denied, Reason
from egressproxy.filters.base import BodyMode, FilterContext, Phase, UnusableReference
from egressproxy.filters.credentials.aws_chunks import ChunkError, ChunkSigner
from egressproxy.filters.credentials.aws_keys import from_aws, static_keys
from egressproxy.filters.credentials.aws_signature import AwsKeys, Scope, SigV4, SigV4A
from egressproxy.filters.credentials.backend_credential import BackendCredential, client_credentials
from egressproxy.filters.credentials.config import Aws, CredentialInjectorConfig
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.fields import CREDENTIAL_FIELDS, Fields
from egressproxy.model.local_response import LocalResponse

_UNSIGNED: Final = b"UNSIGNED-PAYLOAD"
#: Values of the payload hash for an unsigned body, which may stay.
_KEPT: Final = frozenset((_UNSIGNED, b"STREAMING-UNSIGNED-PAYLOAD-TRAILER"))
#: A body whose chunks the client has signed, without and with trailers.
_IN_CHUNKS: Final = frozenset((b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD", b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"))
_HASH: Final = re.compile(rb"[0-9a-f]{64}")
_SIGNED_BY_CLIENT: Final = client_credentials(
    (*CREDENTIAL_FIELDS, "x-amz-date", "x-amz-content-sha256", "x-amz-region-set", "date")
)
#: Parameters of a presigned URL, in lower case.
_PRESIGNED: Final = frozenset(
    (b"x-amz-algorithm", b"x-amz-credential", b"x-amz-date", b"x-amz-expires", b"x-amz-security-token",
     b"x-amz-signature", b"x-amz-signedheaders", b"x-amz-region-set")
)  # fmt: skip
#: A larger clock skew is corrected from the backend's response, in seconds; AWS refuses at 300 or 900.
_SKEW_S: Final = 60.0
#: The largest correction by one response: AWS itself allows 900.
_MAX_SKEW_S: Final = 900.0
#: AWS's error codes for a wrong time.
_SKEWED: Final = re.compile(rb"RequestTimeTooSkewed|RequestInTheFuture|Signature expired|Signature not yet current")
#: The most bytes of such a response that are searched.
_MAX_ERROR: Final = 4096


class _SignedHead(NamedTuple):
    """A signed request head: block of fields, path, the signature alone, and its time."""

    block: bytes
    path: bytes
    signature: bytes
    time: bytes


class AwsInjector(BackendCredential):
    """The value is AwsKeys. A body with signed chunks is signed again on a Backend, and refused elsewhere."""

    keeps_length = True

    def __init__(self, context: FilterContext) -> None:
        config: CredentialInjectorConfig = context.config
        super().__init__(context, "create the Secrets that aws.accessKey names" if config.aws else "")
        assert config.aws is not None
        self._aws: Aws = config.aws
        self._scope = Scope(self._aws.service, self._aws.region, is_s3=self._aws.is_s3)
        self._signer: SigV4 | None = None
        self._token = b""
        self._skew_s = 0.0
        self.needs_body = self._aws.signs_body
        self.max_buffer_bytes = self._aws.max_body_bytes
        self._body: StateSlot[_SignedHead | ChunkSigner] = StateSlot("signed body")
        self._refused: StateSlot[bytes] = StateSlot("refused")
        #: Only on a Backend can the body of each attempt be changed.
        self._signs_chunks = (
            self._aws.is_s3
            and self._aws.payload == "Auto"
            and self._aws.algorithm == "SigV4"
            and context.source.partition(" ")[0].partition(".")[0] == "Backend"
        )
        self.runs_in = frozenset((Phase.BACKEND_REQUEST, Phase.RESPONSE_BODY))
        if self._signs_chunks:
            self.runs_in |= {Phase.REQUEST_BODY}
        fetch = from_aws(context, self._aws)
        if fetch is not None:
            self._remedy = "the access log has the reason"
            self._fetch_by(fetch)
            return
        try:
            keys = static_keys(context, self._aws)
            if keys is not None:
                self._keep(keys)
        except ValueError as error:
            refs = self._aws.access_key
            at_fault = refs.access_key_id_ref if refs is not None else None
            raise UnusableReference(f"the Secrets of aws.accessKey cannot be used: {error}", at_fault) from None

    def _take(self, value: object) -> None:
        assert isinstance(value, AwsKeys)
        made = SigV4A if self._aws.algorithm == "SigV4A" else SigV4
        self._signer = made(value, self._scope)
        self._token = b"" if value.token is None else b"\r\nx-amz-security-token: " + value.token.reveal()

    def _forget(self) -> None:
        self._signer, self._token = None, b""

    def backend_request(self, exchange: Exchange) -> Awaitable[LocalResponse | None] | None:
        """Signs the request. Raises as BackendCredential; Denied(FILTER_REJECTED, 403) for a body that cannot be
        signed.
        """
        if exchange.backend_origin is not self._approved:
            waiting = self._unready(exchange)
            if waiting is not None:
                return waiting
        signed_body = exchange.take(self._body)
        payload = self._payload(exchange)
        if payload not in _IN_CHUNKS:
            self._put(exchange, self._signed(exchange, payload, self._now()))
        elif isinstance(signed_body, _SignedHead):
            head = self._signed(exchange, payload, signed_body.time)
            if head.signature != signed_body.signature:
                raise self._refusal("whose head another filter has changed behind this one")
            self._put(exchange, head)
        else:
            head = self._signed(exchange, payload, self._now())
            self._put(exchange, head)
            exchange.keep(self._body, self._chunks(head, payload))
        return None

    def body_mode_for(self, exchange: Exchange, phase: Phase) -> BodyMode | None:
        """Reads bodies with signed chunks; and, over TLS, error responses that may report a wrong time."""
        if phase is Phase.RESPONSE_BODY:
            return BodyMode.STREAM if exchange.response.status in (400, 403) and exchange.backend_is_secure else None
        declared = exchange.request.fields.get(b"x-amz-content-sha256")
        return BodyMode.STREAM if declared in _IN_CHUNKS and exchange.backend != "-" else None

    def request_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes | Awaitable[bytes]:
        """Signs chunks again. Raises Denied (403). Whole bodies come before `backend_request`, others after it."""
        chunks = exchange.state.get(self._body)
        if isinstance(chunks, ChunkSigner):
            return self._fed(chunks, data, last)
        if not self._is_ready:
            return self._wait_for_body(exchange, data, last)
        payload = self._payload(exchange)
        head = self._signed(exchange, payload, self._now())
        exchange.keep(self._body, head)  # as which the whole body is signed
        return self._fed(self._chunks(head, payload), data, last)

    def held_bytes(self, exchange: Exchange, phase: Phase) -> int:
        chunks = exchange.state.get(self._body)
        return chunks.held_bytes if isinstance(chunks, ChunkSigner) else 0

    async def _wait_for_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes:
        if self._refresher is None:
            raise self._missing(exchange)
        await self._refresher.ready()
        if not self._is_ready:
            raise self._missing(exchange, self._refresher)
        made = self.request_body(exchange, data, last)
        assert isinstance(made, bytes)
        return made

    def _fed(self, chunks: ChunkSigner, data: bytes, last: bool) -> bytes:
        try:
            return chunks.feed(data, last)
        except ChunkError as error:
            raise self._refusal(f"whose chunks are not valid: {error}") from None

    def _chunks(self, head: _SignedHead, payload: bytes) -> ChunkSigner:
        assert self._signer is not None
        return ChunkSigner(self._signer, head.time, head.signature, has_trailers=payload.endswith(b"-TRAILER"))

    def _now(self) -> bytes:
        return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + self._skew_s)).encode()

    def _signed(self, exchange: Exchange, payload: bytes, now: bytes) -> _SignedHead:
        """The head of this request, signed at this time. Changes nothing."""
        signer, request = self._signer, exchange.request
        assert signer is not None
        block = _SIGNED_BY_CLIENT.sub(b"", request.fields.block) + b"\r\nx-amz-date: " + now + self._token
        if self._scope.is_s3 or payload == _UNSIGNED:
            block += b"\r\nx-amz-content-sha256: " + payload
        if signer.algorithm != SigV4.algorithm:
            block += b"\r\nx-amz-region-set: " + self._aws.region.encode()
        path = _without_presigned(request.path) if b"?" in request.path else request.path
        fields = [line for line in Fields(block) if line[0].startswith(b"x-amz-") or line[0] == b"content-type"]
        fields.append((b"host", exchange.upstream_host))
        value, signature = signer.authorization(request.method, path, fields, payload, now)
        return _SignedHead(block + b"\r\nauthorization: " + value, path, signature, now)

    @staticmethod
    def _put(exchange: Exchange, head: _SignedHead) -> None:
        exchange.request.fields.block, exchange.request.path = head.block, head.path

    def _payload(self, exchange: Exchange) -> bytes:
        """The hash of the body, or its placeholder."""
        declared = exchange.request.fields.get(b"x-amz-content-sha256") or b""
        if declared in _IN_CHUNKS and self._signs_chunks:
            return declared
        if declared.startswith(b"STREAMING-") and declared not in _KEPT:
            raise self._refusal("that the client signs in chunks, here")
        if self._aws.signs_body:
            return hashlib.sha256(exchange.body or b"").hexdigest().encode()
        if self._aws.payload == "Auto" and (declared in _KEPT or _HASH.fullmatch(declared)):
            return declared
        return declared if declared in _KEPT else _UNSIGNED

    def _refusal(self, why: str) -> Denied:
        return Denied(
            Reason.FILTER_REJECTED,
            f"filter {self._name} cannot sign a body {why}",
            rule=self._source,
            remedy="have the client send the body unsigned, or whole (payload_signing_enabled of botocore)",
        )

    def response_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes:
        """Reads this machine's clock skew from a refusal, and changes nothing."""
        held = exchange.state.get(self._refused) or b""
        if len(held) < _MAX_ERROR:
            held = (held + data)[:_MAX_ERROR]
            exchange.keep(self._refused, held)
            if (last or len(held) == _MAX_ERROR) and _SKEWED.search(held):
                self._correct(exchange)
        return data

    def _correct(self, exchange: Exchange) -> None:
        """Sign later requests with the backend's time, or a time at most `_MAX_SKEW_S` nearer to it."""
        try:
            theirs = parsedate_to_datetime((exchange.response.fields.get(b"date") or b"").decode("latin-1")).timestamp()
        except (ValueError, TypeError, IndexError, OverflowError):
            return
        skew = theirs - time.time()
        if abs(skew - self._skew_s) > _SKEW_S:
            self._skew_s = max(-_MAX_SKEW_S, min(skew, _MAX_SKEW_S)) if abs(skew) > _SKEW_S else 0.0


def _without_presigned(target: bytes) -> bytes:
    """The target without the signature of a presigned URL."""
    path, _, query = target.partition(b"?")
    kept = [pair for pair in query.split(b"&") if unquote_to_bytes(pair.partition(b"=")[0]).lower() not in _PRESIGNED]
    return path + b"?" + b"&".join(kept) if kept else path
