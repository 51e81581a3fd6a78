"""A laboratory of backends whose TLS is wrong in one way each: none gets a request, and people read what was presented,
what was expected, and what to do.
"""

from __future__ import annotations

import datetime
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier

from tests.e2e.tls_lab.authority import Certificate, issue, key_of, server, with_sha1
from tests.e2e.world import ALLOW_LOOPBACK, Origin, client, read_message, tls_secret
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import pin
from tests.support.process import GatewayProcess

HOST = "origin.test"

ROOT = issue("Lab Root", is_ca=True)
INTERMEDIATE = issue("Lab Intermediate", ROOT, is_ca=True)
FOREIGN = issue("Foreign Root", is_ca=True)
NARROW = issue(
    "Narrow Authority", ROOT, is_ca=True,
    extensions=[(x509.NameConstraints([x509.DNSName("other.test")], None), True)],
)  # fmt: skip
SHORT = issue("Short Authority", ROOT, is_ca=True, path_length=0)
BELOW_SHORT = issue("Below Short", SHORT, is_ca=True)
OLD = issue("Old Authority", ROOT, is_ca=True, days=(-9, -1))
WEAK = issue("Weak Authority", ROOT, is_ca=True, key=rsa.generate_private_key(65537, 1024))
NO_CA = issue(HOST, ROOT, key=key_of("no authority"))
GOOD = issue(HOST, ROOT)
CLIENT = issue("gateway", FOREIGN, usages=[ExtendedKeyUsageOID.CLIENT_AUTH])
UNKNOWN = x509.UnrecognizedExtension(ObjectIdentifier("1.2.3.4.5"), b"\x05\x00")


def day(days: int) -> str:
    return (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)).strftime("%Y-%m-")


@dataclass
class Case:
    """What the backend speaks, how it is to be reached, and words of the message, the remedy and the log's `detail`."""

    serve: ssl.SSLContext | Callable[[socket.socket], None]
    message: str
    remedy: str = ""
    detail: tuple[str, ...] = ()
    tls: dict[str, Any] = field(default_factory=dict)
    reason: str = "upstream_tls_certificate"
    host: str = HOST
    status: int = 502


def shown(certificate: Certificate, message: str, remedy: str = "", *detail: str, **more: Any) -> Case:
    """The backend shows this certificate."""
    return Case(server(certificate), message, remedy, detail, **more)


def crl(text: str) -> dict[str, Any]:
    return {"crlRefs": [{"kind": "ConfigMap", "name": text}]}


def unknown_name(context: ssl.SSLContext) -> None:
    context.sni_callback = lambda *_: ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME


def leaf(issuer: Certificate = ROOT, **more: Any) -> Certificate:
    return issue(HOST, issuer, **more)


PROTOCOL = "upstream_tls_protocol"
MUTUAL = {"mode": "Mutual", "clientCertificateRef": {"name": "gateway"}}
REVOKED, UNREVOKED = leaf(), leaf(INTERMEDIATE)
CRLS = {
    "revoking": ROOT.crl(REVOKED), "stale": ROOT.crl(days=(-9, -1)), "early": ROOT.crl(days=(1, 9)), "root": ROOT.crl(),
}  # fmt: skip
old_version = partial(server, GOOD)


def closing(sock: socket.socket) -> None:
    sock.recv(1)


def silent(sock: socket.socket) -> None:
    while sock.recv(65536):
        pass


def plain(sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
    silent(sock)


CASES: dict[str, Case] = {
    "expired": shown(
        leaf(days=(-9, -2)),
        f"has expired on {day(-2)}",
        "renewed",
        "subject commonName=origin.test",
        "issuer commonName=Lab Root",
        "sha256 ",
        "name origin.test, signed by ConfigMap agents/lab-ca",
    ),
    "expired-authority": shown(
        leaf(OLD),
        "is signed by an authority whose own certificate has expired",
        "renew the authority's",
        "then commonName=Old Authority",
    ),
    "not-yet-valid": shown(leaf(days=(2, 9)), f"is not valid before {day(2)}", "clocks"),
    "wrong-name": shown(
        issue("elsewhere.test", ROOT),
        "is for another name",
        "tls.subjectAltNames",
        "names elsewhere.test",
        "expected: name origin.test",
    ),
    "wrong-address": shown(issue("address", ROOT, names=["192.0.2.1"]), "is for another name", "", "names 192.0.2.1"),
    "wrong-accepted-name": shown(
        GOOD,
        "is for another name",
        "tls.subjectAltNames",
        "name a.test or spiffe://b.test/c",
        tls={"sni": HOST, "subjectAltNames": ["a.test", "spiffe://b.test/c"]},
    ),
    "common-name-only": shown(
        leaf(names=[]), "names no host: a common name does not count", "subject alternative names", "names none"
    ),
    "for-clients": shown(
        leaf(usages=[ExtendedKeyUsageOID.CLIENT_AUTH]),
        "has a form that is not accepted: it is not for servers (extended key usage)",
        "serverAuth",
    ),
    "revoked": shown(
        REVOKED,
        "is not trusted: it has been revoked",
        "another certificate",
        "in no revocation list",
        tls=crl("revoking"),
    ),
    "list-missing": shown(
        UNREVOKED, "is not trusted: the revocation list of its authority is missing", "tls.crlRefs", tls=crl("root")
    ),
    "list-stale": shown(
        GOOD, "is not trusted: the revocation list of its authority has expired", "tls.crlRefs", tls=crl("stale")
    ),
    "list-early": shown(
        GOOD, "is not trusted: the revocation list of its authority is not valid yet", "", tls=crl("early")
    ),
    "pinned-elsewhere": shown(
        GOOD,
        "is not trusted: its key is not pinned",
        "tls.pins",
        pin(GOOD.pem),
        pin(FOREIGN.pem),
        tls={"pins": [pin(FOREIGN.pem)]},
    ),
    "unknown-authority": shown(
        leaf(FOREIGN),
        "is not trusted: the authority that signed it is not known",
        "the certificate itself into ConfigMap agents/lab-ca",
        "issuer commonName=Foreign Root",
        "no further certificate",
    ),
    "unknown-root-sent": Case(
        server(Certificate(leaf(FOREIGN).made, key_of(HOST), Certificate(FOREIGN.made, FOREIGN.key, FOREIGN))),
        "is not trusted: its chain ends in a root that is not known",
        "the certificate itself into ConfigMap agents/lab-ca",
    ),
    "self-signed": shown(
        issue(HOST), "is not trusted: it is self-signed", "the certificate itself", "issuer commonName=origin.test"
    ),
    "missing-intermediate": Case(
        server(leaf(INTERMEDIATE), with_intermediates=False),
        "is not trusted: the authority that signed it is not known",
        "has to send its intermediate certificates",
        ("issuer commonName=Lab Intermediate",),
    ),
    "weak-key": shown(
        leaf(key=rsa.generate_private_key(65537, 1024)),
        "has a form that is not accepted: its key is too weak",
        "2048 bits",
    ),
    "weak-authority": shown(
        leaf(WEAK), "has a form that is not accepted: the key of its authority is too weak", "2048 bits"
    ),
    "sha-1": shown(
        with_sha1(HOST, ROOT), "has a form that is not accepted: its digest is too weak, such as SHA-1", "SHA-256"
    ),
    "name-constraint": shown(
        leaf(NARROW),
        "is for a name that its authority may not vouch for (name constraints)",
        "",
        "then commonName=Narrow Authority",
    ),
    "path-length": shown(leaf(BELOW_SHORT), "its chain is longer than one of its authorities allows (pathlen)"),
    "signed-by-a-server": shown(issue(HOST, NO_CA), "it is signed with a certificate that is no authority's"),
    "critical-extension": shown(leaf(extensions=[(UNKNOWN, True)]), "it has a critical extension that is not known"),
    "odd-text": shown(
        issue("x;\n\x1b[31m\u202e" + "y" * 40, ROOT, names=[f"{i}.other.test" for i in range(30)]),
        "is for another name",
        "",
        "0.other.test",
        " and 22 more",
        "subject commonName=x???[31m",
    ),
    "tls-1.0": Case(
        old_version(maximum=ssl.TLSVersion.TLSv1),
        "speaks no version of TLS that is allowed here",
        "TLS 1.2 or later",
        reason=PROTOCOL,
    ),
    "tls-1.1": Case(
        old_version(maximum=ssl.TLSVersion.TLSv1_1),
        "speaks no version of TLS that is allowed here",
        "TLS 1.2 or later",
        reason=PROTOCOL,
    ),
    "tls-1.2-where-1.3-is-the-least": Case(
        old_version(maximum=ssl.TLSVersion.TLSv1_2),
        "speaks no version of TLS that is allowed here",
        "TLS 1.3 or later",
        ("TLS 1.3 or later",),
        {"minVersion": "1.3"},
        PROTOCOL,
    ),
    "weak-ciphers": Case(
        server(GOOD, maximum=ssl.TLSVersion.TLSv1_2, setup=lambda c: c.set_ciphers("AES128-SHA:@SECLEVEL=0")),
        "accepts none of our TLS versions and ciphers",
        "AES-GCM",
        reason=PROTOCOL,
    ),
    "wants-a-certificate": Case(
        server(GOOD, clients=ROOT.pem),
        "asks for a client certificate",
        "tls.clientCertificateRef",
        ("shown no client certificate",),
        reason=PROTOCOL,
    ),
    "wants-a-certificate-1.2": Case(
        server(GOOD, clients=ROOT.pem, maximum=ssl.TLSVersion.TLSv1_2),
        "or wants a client certificate",
        "tls.clientCertificateRef",
        reason=PROTOCOL,
    ),
    "wants-another-certificate": Case(
        server(GOOD, clients=ROOT.pem),
        "refuses our client certificate",
        "tls.clientCertificateRef",
        ("shown the client certificate of Secret agents/gateway",),
        MUTUAL,
        PROTOCOL,
    ),
    "wants-another-certificate-1.2": Case(
        server(GOOD, clients=ROOT.pem, maximum=ssl.TLSVersion.TLSv1_2),
        "refuses our client certificate",
        "its authority",
        (),
        MUTUAL,
        PROTOCOL,
    ),
    "unknown-to-the-server": Case(
        server(GOOD, setup=unknown_name),
        "knows no server of the name that it is asked for (SNI)",
        "tls.sni",
        reason=PROTOCOL,
    ),
    "plain-http": Case(plain, "does not speak TLS at this port", "mode: None", reason=PROTOCOL),
    "closing": Case(closing, "closed the connection during TLS", reason=PROTOCOL),
    "silent": Case(silent, "took too long", reason="upstream_tls_timeout", status=504),
}


@dataclass
class Lab:
    gateway: GatewayProcess
    port: int
    shown: list[ssl.SSLContext]  # the last of them is what the backend "changing" shows

    def ask(self, case: str) -> tuple[bytes, dict[str, str]]:
        """The status line and the error of a request to this case."""
        with client(self.port) as sock:
            sock.sendall(f"GET /{case}/x HTTP/1.1\r\nHost: lab.test\r\n\r\n".encode())
            head, body = read_message(sock)
        error: dict[str, str] = json.loads(body)["error"] if body != b"ok" else {}
        return head.partition(b"\r\n")[0], error


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    port = free_port()
    with NameServer({"*": ["127.0.0.1"]}) as dns:
        origins: dict[str, Origin] = {}
        shown_now = [server(leaf(days=(-9, -2)))]

        def change(context: ssl.SSLContext) -> None:
            context.sni_callback = lambda peer, *_: setattr(peer, "context", shown_now[-1])

        cases = CASES | {"good": Case(server(GOOD), ""), "changing": Case(server(GOOD, setup=change), "")}
        objects = [
            m.gateway(m.http_listener(port)),
            m.policy(dns=dns.address, cidrs=ALLOW_LOOPBACK, traffic={"timeouts": {"tlsHandshake": "2s"}}),
            m.config_map("lab-ca", {"ca.crt": ROOT.pem}),
            tls_secret("gateway", CLIENT.pem, CLIENT.key_pem.encode()),
        ]
        objects += [m.config_map(name, {"crl.pem": text}) for name, text in CRLS.items()]
        for name, case in cases.items():
            is_context = isinstance(case.serve, ssl.SSLContext)
            origins[name] = Origin(context=case.serve) if is_context else Origin(case.serve)  # type: ignore[arg-type]
            made = m.backend(name.replace(".", "-"), case.host, origins[name].port, tls=True, ca="lab-ca")
            made["spec"]["destination"]["ports"][0]["tls"].update(case.tls)
            objects.append(made)
            objects.append(m.http_route(name.replace(".", "-"), m.prefix_rule(f"/{name}", name.replace(".", "-"))))
        try:
            with GatewayProcess(tmp_path_factory.mktemp("lab"), objects) as gateway:
                yield Lab(gateway, port, shown_now)
        finally:
            for origin in origins.values():
                origin.close()


def test_the_laboratory_serves_what_is_right(lab: Lab):
    assert lab.ask("good")[0] == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("name", CASES)
def test_people_read_what_is_wrong(lab: Lab, name: str):
    case, since = CASES[name], lab.gateway.mark()
    line, error = lab.ask(name)
    who = f"backend agents/{name.replace('.', '-')}"
    record = lab.gateway.wait_for_record(since=since, reason=case.reason)
    said = f"{line.decode()}\n{error}\n{record['detail']}"
    assert line.startswith(b"HTTP/1.1 %d " % case.status), said
    assert case.message in error["message"], said
    assert who in error["message"], said
    assert case.message[:100].encode() in line, said
    assert case.remedy in error.get("remedy", ""), said
    assert f"sni {HOST}" not in said
    for words in ("expected: ", *case.detail):
        assert words in record["detail"], said
    if case.reason == "upstream_tls_certificate":
        assert record["detail"].startswith("presented: subject "), said
        assert "commonName" not in error["message"], "what the server chose is for the log alone"
    assert record["detail"].isprintable()


def test_explain_tells_the_latest_failure_until_it_is_mended(lab: Lab):
    def told() -> tuple[dict[str, Any], str]:
        done = lab.gateway.verb("explain", "GET", "http://lab.test/changing", "--listener", "http")
        status, text = lab.gateway.admin(f"/explain?listener=http&method=GET&url={quote('http://lab.test/changing')}")
        assert status == 200, text
        tls: dict[str, Any] = json.loads(text)["backends"][0]["tls"]
        return tls, done.stdout

    lab.ask("changing")
    tls, text = told()
    failure = tls["latestFailure"]
    assert failure["host"] == HOST
    assert "has expired on " in failure["message"]
    assert failure["detail"].startswith("presented: subject commonName=origin.test")
    assert 0 <= failure["secondsAgo"] < 60
    assert f"s ago: {failure['message']}" in text
    assert failure["detail"] in text
    assert "remedy: the server needs a renewed certificate" in text
    lab.shown.append(server(GOOD))
    assert lab.ask("changing")[1] == {}
    tls, text = told()
    assert "latestFailure" not in tls
    assert " ago: " not in text
