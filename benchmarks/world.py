"""What every proxy of a comparison shares: names, certificates, the upstream, configurations made from templates."""

from __future__ import annotations

import datetime
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address
from pathlib import Path
from time import time

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from benchmarks.processes import Child, StartError, free_ports
from egressproxy.gateway.leaf_certificates.minting import new_ca

TEMPLATES = Path(__file__).parent / "peers"
REPOSITORY = Path(__file__).parent.parent
ROUTES = 200


def hosts(count: int) -> tuple[str, ...]:
    """The names of so many routes: h000.bench.example and so on."""
    return tuple(f"h{number:03d}.bench.example" for number in range(count))


HOSTS = hosts(ROUTES)
#: The one that is asked for: neither the first nor the last.
HOST = HOSTS[137]
TLS_NAME = "upstream.bench.example"
#: Its backend is the origin of event streams.
EVENTS_HOST = "events.bench.example"
#: Its backend answers calls of gRPC.
GRPC_HOST = "grpc.bench.example"
#: The message of a call and of its answer: 64 bytes behind the prefix that says so.
GRPC_MESSAGE = bytes(4) + b"\x40" + b"m" * 64
BODY = "0123456789abcdef" * 64
#: A call of a language model, with two things that are not to leave, and the answer to it.
AI_HOST = "ai.bench.example"
QUESTION = json.dumps({
    "model": "bench",
    "max_tokens": 64,
    "messages": [
        {"role": "system", "content": "You answer letters of customers, politely, in three sentences. " * 5},
        {"role": "user", "content": "Please answer this letter. My order has not come. I paid with the card 4111 1111 "
         "1111 1111 on Monday; write to me at alice@customer.example when you know more. " + "Thank you. " * 20},
    ],
})  # fmt: skip
COMPLETION = json.dumps({
    "id": "chatcmpl-9f2c4d7e", "object": "chat.completion", "created": 1760000000, "model": "bench",
    "choices": [{
        "index": 0, "finish_reason": "stop", "logprobs": None,
        "message": {"role": "assistant", "refusal": None, "content": "We have found your order, and sent it. " * 10},
    }],
    "usage": {"prompt_tokens": 160, "completion_tokens": 64, "total_tokens": 224},
})  # fmt: skip
LARGE_BYTES = 10 * 1024 * 1024
#: With Server, Date, Content-Type, Content-Length and Connection, which nginx writes itself, the response has 15.
RESPONSE_FIELDS = {
    "Cache-Control": "private, max-age=0, must-revalidate",
    "ETag": "W/5f2c1d-400",
    "Vary": "Accept-Encoding, Accept-Language",
    "X-Request-Id": "7d3f8a54-0c1e-4b5c-9a68-2f1f4f0a6a11",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Strict-Transport-Security": "max-age=31536000; includeSubDomains",
    "X-RateLimit-Limit": "5000",
    "X-RateLimit-Remaining": "4987",
    "X-Internal-Note": "removed by the proxy",
}
_LOOP = re.compile(r"^[ ]*@for host@\n(.*?)^[ ]*@end@\n", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"@([A-Z_]+)@")


class World:
    """A folder for one run. `start` brings the upstream up; `close` ends it."""

    def __init__(self, folder: Path, core: int | None) -> None:
        self.folder = folder
        self.plain_port, self.tls_port, self.events_port, self.grpc_port = free_ports(4)
        self.token = secrets.token_hex(16)
        self._core = core
        self._started: list[Child] = []
        ca_pem = _write_certificates(folder)
        opened_pem, opened_key = new_ca("benchmark interception", time(), 1)
        (folder / "opened-ca.crt").write_text(opened_pem, "ascii")
        self._values = {
            "PLAIN": str(self.plain_port),
            "TLS": str(self.tls_port),
            "EVENTS": str(self.events_port),
            "GRPC": str(self.grpc_port),
            "TOKEN": self.token,
            "CA_FILE": str(folder / "ca.crt"),
            "CA_PEM": json.dumps(ca_pem),
            "OPENED_CA": json.dumps(opened_pem),
            "OPENED_KEY": json.dumps(opened_key.reveal().decode()),
            "CERTIFICATE": str(folder / "upstream.crt"),
            "KEY": str(folder / "upstream.key"),
            "BODY": BODY,
            "COMPLETION": COMPLETION,
            "FIELDS": " ".join(f'add_header {name} "{value}";' for name, value in RESPONSE_FIELDS.items()),
            "USER_DIRECTIVE": "user root;" if os.geteuid() == 0 else "",
        }

    def start(self) -> None:
        """Raises StartError."""
        nginx = find_program("nginx")
        if nginx is None:
            raise StartError("the upstream is nginx, and there is none; on Debian: apt-get install nginx")
        folder = self.folder / "upstream"
        folder.mkdir()
        (folder / "large").write_bytes(bytes(LARGE_BYTES))
        (folder / "bench.Echo").mkdir()
        (folder / "bench.Echo" / "Say").write_bytes(GRPC_MESSAGE)
        config = self.render("upstream.conf", folder, {})
        upstream = Child("upstream", [nginx, "-p", str(folder), "-c", str(config)], folder, self._core)
        self._started.append(upstream)
        upstream.wait_for((self.plain_port, self.tls_port, self.grpc_port))
        origin = Child("events", self._origin(), self.folder, self._core, {"PYTHONPATH": str(REPOSITORY)})
        self._started.append(origin)
        origin.wait_for((self.events_port,))

    def close(self) -> None:
        for child in self._started:
            child.stop()

    def _origin(self) -> list[str]:
        return [
            sys.executable, "-m", "benchmarks.load.event_origin", "--port", str(self.events_port),
            "--certificate", str(self.folder / "upstream.crt"), "--key", str(self.folder / "upstream.key"),
            "--token", self.token,
        ]  # fmt: skip

    def render(self, template: str, folder: Path, ports: Mapping[str, int], names: Sequence[str] = HOSTS) -> Path:
        """Fill in a template of peers/: `@NAME@` is a value, the lines between `@for host@` and `@end@` come per host.

        Raises KeyError for a mark that nobody fills in.
        """
        values = self._values | {name: str(port) for name, port in ports.items()}
        values |= {"FOLDER": str(folder), "COUNT": str(len(names))}

        def per_host(match: re.Match[str]) -> str:
            return "".join(
                match[1].replace("@HOST@", host).replace("@NUMBER@", f"{number:03d}")
                for number, host in enumerate(names)
            )

        text = _LOOP.sub(per_host, (TEMPLATES / template).read_text("utf-8"))
        path = folder / template
        path.write_text(_MARK.sub(lambda match: values[match[1]], text), "utf-8")
        return path


def find_program(name: str) -> str | None:
    """The path of a program; the folders of system programs are searched even where PATH does not name them."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def _write_certificates(folder: Path) -> str:
    """ca.crt, upstream.crt and upstream.key in the folder, good for one day; returns the authority as PEM."""
    now = datetime.datetime.now(datetime.UTC)
    span = (now - datetime.timedelta(hours=1), now + datetime.timedelta(days=1))
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "benchmark authority")])

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(span[0])
            .not_valid_after(span[1])
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        )

    signing = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    ca = (
        builder(ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signing, critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    # The address is for LiteLLM, which cannot be told where a name is.
    names = [x509.DNSName(TLS_NAME), x509.IPAddress(IPv4Address("127.0.0.1"))]
    leaf = (
        builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, TLS_NAME)]), key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    ca_pem = ca.public_bytes(Encoding.PEM)
    (folder / "ca.crt").write_bytes(ca_pem)
    (folder / "upstream.crt").write_bytes(leaf.public_bytes(Encoding.PEM))
    (folder / "upstream.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return ca_pem.decode("ascii")
