"""The probes of `doctor` that look at this machine alone: each gives what it has seen, and what to do."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from secrets import randbits
from typing import Final
from urllib.parse import urlsplit

import click

from egressproxy import build as builds
from egressproxy.cli.findings import FAILURE, OK, WARNING, Finding
from egressproxy.model.authority import Authority, AuthorityError, parse_authority
from egressproxy.net.listening import BACKLOG, why_unusable
from egressproxy.net.loop import why_not_uvloop
from egressproxy.upstream.dns_message import (
    BadReply,
    code_name,
    encode_name,
    is_reply,
    is_truncated,
    may_refuse_edns,
    read,
    write_query,
)
from egressproxy.upstream.dns_server import Server
from egressproxy.upstream.system_files import Ipv6Route, parse_resolv_conf

#: A name that stands for nothing (RFC 2606), and that resolvers of networks without the internet may refuse.
ASKED_NAME: Final = "example.com"
#: How long one DNS server, or the server of --connect, has for its answer, in seconds.
ANSWER_S: Final = 3.0
#: Roots from before lack what strict rules demand; every system has some of them, and no certificate of today needs it.
_STRICT_SINCE: Final = 2013
#: `status` of adjtimex(2) that says: no clock of others was followed. Source: <sys/timex.h>.
_TIME_ERROR: Final = 5
_SO_ORIGINAL_DST: Final = 80
CONNTRACK: Final = "nf_conntrack and nftables"


def build() -> Iterator[Finding]:
    """Which build runs, and on which loop."""
    python = platform.python_version()
    if platform.system() != "Linux":
        where = f"{platform.system()}: the gateway runs on Linux"
        yield Finding(FAILURE, "build", where, "run it in a container or a virtual machine with Linux")
    name = builds.name()
    yield Finding(OK, "build", f"{name} build, Python {python}, on {platform.machine()}")
    if (why := why_not_uvloop()) is not None:
        seen = f"the event loop is asyncio's, which is slower: uvloop cannot be imported ({type(why).__name__}: {why})"
        yield Finding(WARNING, "build", seen, "install uvloop for this Python")


def dns(path: Path = Path("/etc/resolv.conf")) -> Iterator[Finding]:
    """Whether the servers of this machine answer, and what is added to names."""
    try:
        system = parse_resolv_conf(path.read_text("utf-8", "replace"), "udp")
    except OSError as error:
        yield Finding(FAILURE, "dns", f"{path}: {error.strerror}", "name servers in `dns.servers` of an EgressPolicy")
        return
    if not system.servers:
        yield Finding(
            FAILURE, "dns", f"{path} names no server", "name servers there, or in `dns.servers` of an EgressPolicy"
        )
    if system.servers:
        with ThreadPoolExecutor(len(system.servers)) as pool:  # each silent one takes its whole time
            yield from pool.map(asked, system.servers)
    if system.search:
        seen = f"names with fewer than {system.ndots} dots are tried below {', '.join(system.search)} first"
        many = system.ndots > 1 and len(system.search) > 1
        remedy = f"each such name costs up to {len(system.search)} more queries: `options ndots:1`" if many else ""
        yield Finding(OK, "dns", seen, remedy)


def asked(server: Server, port: int | None = None) -> Finding:
    """What a server answers over UDP for ASKED_NAME, with EDNS as the gateway asks."""
    question = write_query(encode_name(ASKED_NAME), 1, randbits(16), asks_authentic=False, block=0)
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    where = str(Authority(server.host, port or server.port))
    silent = "see whether it runs, and whether a firewall drops UDP to it; the gateway asks the next server"
    began = time.monotonic()
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((server.host, port or server.port))
            sock.settimeout(ANSWER_S)
            sock.send(question.wire)
            while not is_reply(wire := sock.recv(65535), question):
                left_s = ANSWER_S - (time.monotonic() - began)
                if left_s <= 0:
                    raise TimeoutError
                sock.settimeout(left_s)
    except TimeoutError:
        return Finding(FAILURE, "dns", f"{where} has not answered within {ANSWER_S:g} s", silent)
    except OSError as error:
        return Finding(FAILURE, "dns", f"{where}: {error.strerror or error}", silent)
    took = f"{(time.monotonic() - began) * 1000:.0f} ms"
    if may_refuse_edns(wire) and wire[10:12] == b"\x00\x00":
        seen = f"{where} refuses EDNS ({code_name(wire[3] & 15)}): each name may cost a second query"
        return Finding(WARNING, "dns", seen, "use a server that knows RFC 6891")
    try:
        code = wire[3] & 15 if is_truncated(wire) else read(wire, question)[0]
    except BadReply as error:
        return Finding(FAILURE, "dns", f"{where}: its answer is refused: {error}", "use another server")
    word = code_name(code)
    if word not in ("NOERROR", "NXDOMAIN"):
        seen = f"{where} answers {word} for {ASKED_NAME} ({took})"
        return Finding(
            WARNING, "dns", seen, "see whether it reaches the servers of the internet; a closed network may not"
        )
    edns = "with EDNS" if wire[10:12] != b"\x00\x00" else "without EDNS"
    return Finding(OK, "dns", f"{where} answers {word} for {ASKED_NAME} in {took}, {edns}")


def roots() -> Iterator[Finding]:
    """The CA certificates by which backends are verified where nothing else is written."""
    from egressproxy.cli.trust_bundle import TrustProblem, certificates, system_roots

    for variable in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        named = os.environ.get(variable)
        if named and not os.access(named, os.R_OK):
            yield Finding(
                FAILURE, "roots", f"${variable} names {named}, which cannot be read", "correct or unset the variable"
            )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    count = context.cert_store_stats()["x509_ca"]
    places = ssl.get_default_verify_paths()
    where = places.cafile or places.capath or "no file"
    if not count and places.capath is None:
        yield Finding(
            FAILURE, "roots", f"OpenSSL finds no root ({where}): no public server can be verified",
            "install ca-certificates, or name a file of roots in $SSL_CERT_FILE",
        )  # fmt: skip
        return
    yield Finding(OK, "roots", f"{count} roots from {where}" if count else f"roots are looked up in {where}")
    try:
        found = certificates(system_roots())
    except TrustProblem:
        return
    named_lacks = {}
    for each in found:
        lacks = strict_problems(each) if each.not_valid_before_utc.year >= _STRICT_SINCE else []
        if lacks:
            named_lacks[each.subject.rfc4514_string()] = ", ".join(lacks)
    for name, words in named_lacks.items():
        yield Finding(
            WARNING, "roots", f"{name}: {words}; the gateway accepts it, strict clients (Python 3.13 on) do not",
            "have its owner issue it again by RFC 5280",
        )  # fmt: skip


def strict_problems(certificate: object) -> list[str]:
    """What a root lacks for X509_V_FLAG_X509_STRICT of OpenSSL, as far as its own extensions show it."""
    from cryptography import x509
    from cryptography.x509 import BasicConstraints, ExtensionNotFound, KeyUsage, SubjectKeyIdentifier

    assert isinstance(certificate, x509.Certificate)
    lacks = []
    try:
        extensions = certificate.extensions
        for kind, name in ((SubjectKeyIdentifier, "subject key identifier"), (KeyUsage, "key usage")):
            try:
                extensions.get_extension_for_class(kind)
            except ExtensionNotFound:
                lacks.append(f"no {name}")
        try:
            if not extensions.get_extension_for_class(BasicConstraints).critical:
                lacks.append("basic constraints not critical")
        except ExtensionNotFound:
            lacks.append("no basic constraints")
    except ValueError:
        lacks.append("extensions that cannot be read")
    return lacks


def clock() -> Iterator[Finding]:
    """Whether certificates and tokens can be judged by this clock. Nobody else is asked for the time."""
    now = time.time()
    newest = max((path.stat().st_mtime for path in Path(__file__).parent.glob("*.py")), default=0.0)
    shown = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    if now < newest - 86_400:
        seen = f"it is {shown} here, before this program was installed: certificates are not valid yet"
        yield Finding(FAILURE, "time", seen, "set the clock")
        return
    synchronised = _is_synchronised()
    if synchronised is False:
        yield Finding(
            WARNING, "time", f"it is {shown} here, and the kernel follows no time server",
            "compare it; run chrony or systemd-timesyncd, on the host of a container or virtual machine",
        )  # fmt: skip
        return
    yield Finding(OK, "time", f"it is {shown} here{', by a time server' if synchronised else ''}")


def _is_synchronised() -> bool | None:
    """Whether the kernel's clock follows another; None where it cannot be asked."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))  # modes 0: only asks
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


def kernel() -> Iterator[Finding]:
    """What of the kernel the gateway uses, always or for some listeners."""
    yield Finding(OK, "kernel", f"Linux {platform.release()}")
    try:
        os.close(os.memfd_create("egressproxy-doctor", os.MFD_CLOEXEC))
    except (OSError, AttributeError) as error:
        yield Finding(FAILURE, "kernel", f"memfd_create is refused: {error}", "allow it in the seccomp profile")
    if not hasattr(os, "pidfd_open") or not _has_pidfd():
        yield Finding(
            WARNING, "kernel", "pidfd_open is refused: `run -- CMD` needs it", "allow it in the seccomp profile"
        )
    if why := why_unusable("::1"):
        yield Finding(OK, "kernel", f"no IPv6: {why}; clients and backends are reached by IPv4 alone")
    else:
        route = "with" if Ipv6Route().exists() else "without"
        yield Finding(OK, "kernel", f"IPv6, {route} a route to the internet")
    if not tracks_connections():
        yield Finding(OK, "kernel", f"no connection tracking: transparent listeners need {CONNTRACK}")
    try:
        most = int(Path("/proc/sys/net/core/somaxconn").read_text())
    except (OSError, ValueError):
        return
    if most < BACKLOG:
        yield Finding(
            WARNING, "kernel", f"{most} connections may wait to be accepted, the gateway asks for {BACKLOG}",
            f"sysctl net.core.somaxconn={BACKLOG}",
        )  # fmt: skip


def tracks_connections() -> bool:
    """Whether the kernel can tell where a redirected connection was going."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        try:
            sock.getsockopt(socket.IPPROTO_IP, _SO_ORIGINAL_DST, 16)
        except OSError as error:
            return error.errno != errno.ENOPROTOOPT
    return True


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def environment() -> Iterator[Finding]:
    """Variables that lead other programs to a proxy, which the gateway does not follow."""
    seen: dict[str, list[str]] = {}
    for name, value in sorted(os.environ.items()):
        if name.lower() in ("https_proxy", "http_proxy", "all_proxy") and value:
            seen.setdefault(_without_login(value), []).append(f"${name}")
    for url, names in seen.items():
        host = urlsplit(url).hostname or ""
        if host in ("localhost", "127.0.0.1", "::1"):
            yield Finding(OK, "environment", f"{', '.join(names)}: {url}, a proxy on this machine")
            continue
        yield Finding(
            WARNING, "environment", f"{', '.join(names)}: {url}; the gateway does not follow these variables",
            "if the internet is reached only by that proxy, name it as `parent` in an EgressPolicy: docs/parents.md",
        )  # fmt: skip
    if not seen:
        yield Finding(OK, "environment", "no proxy variables")


def _without_login(url: str) -> str:
    """The URL without user, password, query and path: each may be a secret."""
    scheme, mark, rest = url.partition("://")
    where = (rest if mark else scheme).rpartition("@")[2]
    for end in "/?#":
        where = where.partition(end)[0]
    return f"{scheme}://{where}" if mark else where


def packages() -> Iterator[Finding]:
    """The optional packages that are there."""
    extras = (("cel", "cel", "conditions in CEL"), ("vault", "hvac", "credentials from a vault"),
              ("kubernetes", "kubernetes", "--source kubernetes"))  # fmt: skip
    there = [name for name, module, _ in extras if find_spec(module) is not None]
    missing = [f"{name} ({use})" for name, module, use in extras if find_spec(module) is None]
    seen = f"optional: {', '.join(there) or 'none'}" + (f"; not installed: {', '.join(missing)}" if missing else "")
    yield Finding(OK, "packages", seen, "pip install 'egressproxy[NAME]' where it is needed" if missing else "")


def target_of(written: str) -> Authority:
    """HOST or HOST:PORT of --connect. Raises click.UsageError."""
    try:
        return parse_authority(written.encode("ascii"), 443)
    except (AuthorityError, UnicodeEncodeError):
        raise click.UsageError(f"--connect {written!r} is no HOST or HOST:PORT") from None


def connection(target: Authority) -> Iterator[Finding]:
    """Whether this machine reaches a server, and verifies its certificate by the system's roots."""
    began = time.monotonic()
    try:
        with socket.create_connection((target.host, target.port), ANSWER_S) as sock:
            peer = sock.getpeername()[0]
            context = ssl.create_default_context()
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as the gateway verifies
            with context.wrap_socket(sock, server_hostname=target.host) as tls:
                took = (time.monotonic() - began) * 1000
                yield Finding(OK, "connect", f"{target} ({peer}): {tls.version()}, verified, {took:.0f} ms")
    except ssl.SSLCertVerificationError as error:
        remedy = "a corporate proxy may open TLS: add its root to the system's, or correct the clock"
        yield Finding(FAILURE, "connect", f"{target}: {error.verify_message}", remedy)
    except socket.gaierror as error:
        yield Finding(FAILURE, "connect", f"{target}: {error.strerror}", "see the lines of dns")
    except OSError as error:
        remedy = "a firewall may drop it: use the parent proxy of the network (docs/parents.md)"
        yield Finding(FAILURE, "connect", f"{target}: {error.strerror or error}", remedy)
