"""What tests of fetched credentials share: a token endpoint that looks at every parameter, and filters that ask it."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from urllib.parse import parse_qsl

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from egressproxy.filters.base import FilterContext, Phase
from egressproxy.filters.calls import CallAnswer
from egressproxy.filters.credentials.config import CredentialInjectorConfig
from egressproxy.filters.credentials.credential_injector import CredentialInjector
from egressproxy.filters.credentials.filter_type import CREDENTIAL_INJECTOR
from egressproxy.filters.validation import validated
from egressproxy.model.exchange import BackendOrigin, Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead
from egressproxy.model.secret import SecretBytes
from egressproxy.telemetry.event_aggregator import EventAggregator, FilterNotices
from egressproxy.telemetry.filter_meter import FilterMeter, FilterMetrics

RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ORIGIN = BackendOrigin("api.example", 443, True, ("api.example",))
ENDPOINT = {"backendRef": {"group": "egressproxy.io", "kind": "Backend", "name": "idp"}, "path": "/token"}
LABEL = "Backend idp"


def pem(key) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


class Endpoint:
    """A FilterCall that answers in turn, and keeps what it was asked. `opened`: an event that answers wait for."""

    def __init__(self, *answers, is_verified=True, backend="agents/idp"):
        self.answers = list(answers)
        self.asked = []
        self.is_verified = is_verified
        self.backend = backend
        self.opened = None

    async def request(self, method, path, fields=(), body=b"", *, timeout_s, x=None):
        assert 0 < timeout_s <= 60
        assert x is None  # it asks for itself: the token is for all clients
        self.asked.append((method, path, Fields.of(fields), body))
        if self.opened is not None:
            await self.opened.wait()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        status, said = answer
        return CallAnswer(status, Fields(), said if isinstance(said, bytes) else json.dumps(said).encode())

    @property
    def form(self) -> list[tuple[str, str]]:
        """What was asked last."""
        method, _, fields, body = self.asked[-1]
        assert method == b"POST"
        assert fields.get(b"content-type") == b"application/x-www-form-urlencoded"
        return parse_qsl(body.decode(), strict_parsing=True, keep_blank_values=True)


def granted(token="tok-1", **more):
    return 200, {"access_token": token, "token_type": "Bearer", "expires_in": 3600, **more}


def injector(config, secrets=(), calls=(), folder="", metrics=None, notices=None) -> CredentialInjector:
    settings = validated(CredentialInjectorConfig, json.dumps(config))
    values = {label: SecretBytes(value.encode()) for label, value in dict(secrets).items()}
    meter = FilterMeter(FilterMetrics() if metrics is None else metrics, "inject", CREDENTIAL_INJECTOR.name)
    told = FilterNotices(EventAggregator() if notices is None else notices, "inject", "Backend a/b")
    context = FilterContext(
        settings, values, "inject", "Backend a/b", "Backend a/b", folder, Phase.BACKEND_REQUEST, calls=dict(calls),
        meter=meter, notices=told,
    )  # fmt: skip
    return CREDENTIAL_INJECTOR.build(context)


def exchange(*lines, target=b"/v1/x", method=b"GET") -> Exchange:
    x = Exchange("127.0.0.1:1", "a/gw", "l", 0.0)
    x.request = RequestHead(method, target, Fields.of(lines))
    x.backend, x.backend_is_secure, x.backend_origin = "a/b", True, ORIGIN
    x.upstream_host = b"api.example"
    return x


async def sent(made: CredentialInjector, x: Exchange | None = None) -> Exchange:
    """An exchange as it goes to the backend."""
    x = x or exchange()
    waiting = made.backend_request(x)
    if waiting is not None:
        await waiting
    return x


def claims(token: str, key) -> tuple[dict, dict]:
    """Header and claims of an assertion whose signature is right."""
    head, body, signature = token.split(".")
    signed, raw = f"{head}.{body}".encode(), decoded(signature)
    if isinstance(key, rsa.RSAPrivateKey):
        key.public_key().verify(raw, signed, padding.PKCS1v15(), hashes.SHA256())
    else:
        half = len(raw) // 2
        der = encode_dss_signature(int.from_bytes(raw[:half], "big"), int.from_bytes(raw[half:], "big"))
        key.public_key().verify(der, signed, ec.ECDSA(hashes.SHA256()))
    return json.loads(decoded(head)), json.loads(decoded(body))


def decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
