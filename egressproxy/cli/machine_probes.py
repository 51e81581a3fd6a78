"""The probes of `doctor` that look at this machine alone: each gives what it has seen, and what to do."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import platform
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from secrets import randbits
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from egressproxy import build as builds
from egressproxy.model.authority import Authority, AuthorityError, parse_authority
from egressproxy.net.listening import BACKLOG, why_unusable
from egressproxy.net.loop import why_not_uvloop

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from egressproxy.ir.backend import BackendTlsIR
    from egressproxy.upstream.dns_server import Server

OK: Final = "ok"
WARNING: Final = "warning"
FAILURE: Final = "failure"
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


class Finding(NamedTuple):
    """What a probe has seen. `level` is OK, WARNING or FAILURE; `remedy` says what to do, "" where nothing is to be
    done; `topic` is another than that of the probe.
    """

    level: str
    seen: str
    remedy: str = ""
    topic: str = ""


def judged(seen: str, problem: str, remedy: str, level: str = WARNING) -> Finding:
    """What is seen, which is good without a problem."""
    return Finding(level, f"{seen}: {problem}", remedy) if problem else Finding(OK, seen)


def build() -> Iterator[Finding]:
    """Which build runs, and on which loop."""
    if platform.system() != "Linux":
        remedy = "run it in a container or a virtual machine with Linux"
        yield Finding(FAILURE, f"{platform.system()}: the gateway runs on Linux", remedy)
    yield Finding(OK, f"{builds.name()} build, Python {platform.python_version()}, on {platform.machine()}")
    if (why := why_not_uvloop()) is not None:
        seen = f"the event loop is asyncio's, which is slower: uvloop cannot be imported ({type(why).__name__}: {why})"
        yield Finding(WARNING, seen, "install uvloop for this Python")


def dns(path: Path = Path("/etc/resolv.conf")) -> Iterator[Finding]:
    """Whether the servers of this machine answer, and what is added to names."""
    from egressproxy.upstream.dns_client import SYSTEM_TRUST
    from egressproxy.upstream.system_files import parse_resolv_conf

    remedy = "name servers there, or in `dns.servers` of an EgressPolicy"
    try:
        system = parse_resolv_conf(path.read_text("utf-8", "replace"), "udp")
    except OSError as error:
        yield Finding(FAILURE, f"{path}: {error.strerror}", remedy)
        return
    if not system.servers:
        yield Finding(FAILURE, f"{path} names no server", remedy)
    yield from asked([(each, SYSTEM_TRUST) for each in system.servers])
    if system.search:
        seen = f"names with fewer than {system.ndots} dots are tried below {', '.join(system.search)} first"
        many = system.ndots > 1 and len(system.search) > 1
        remedy = f"each such name costs up to {len(system.search)} more queries: `options ndots:1`" if many else ""
        yield Finding(OK, seen, remedy)


def asked(servers: Iterable[tuple[Server, BackendTlsIR]]) -> Sequence[Finding]:
    """What these DNS servers answer, asked at once, as the gateway asks."""

    async def ask_all() -> Sequence[Finding]:
        return await asyncio.gather(*(_asked(*each) for each in servers))

    return asyncio.run(ask_all())


async def _asked(server: Server, tls: BackendTlsIR) -> Finding:
    from egressproxy.upstream.dns_client import DnsClient, DnsFailure
    from egressproxy.upstream.dns_message import BadReply, code_name, encode_name, may_refuse_edns, read, write_query

    client, began = DnsClient(tls=tls), time.monotonic()
    where = server.label.removeprefix("udp://")
    question = write_query(encode_name(ASKED_NAME), 1, randbits(16), asks_authentic=False, block=0)
    remedy = "see whether it runs, and whether a firewall drops queries to it; the gateway asks the next server"
    try:
        async with asyncio.timeout(ANSWER_S):
            wire, _ = await client.reply_of(server, question)
        code = code_name(read(wire, question)[0])
    except TimeoutError:
        return Finding(FAILURE, f"{where} has not answered within {ANSWER_S:g} s", remedy, "dns")
    except DnsFailure as failure:  # which names the server, and the remedy
        return Finding(FAILURE, str(failure), topic="dns")
    except BadReply as error:
        return Finding(FAILURE, f"{where}: {error}", "use another server", "dns")
    except OSError as error:
        return Finding(FAILURE, f"{where}: {error.strerror or error}", remedy, "dns")
    finally:
        client.close()
    knows_edns = wire[10:12] != b"\x00\x00"
    took = f"{(time.monotonic() - began) * 1000:.0f} ms"
    seen = f"{where} answers {code} for {ASKED_NAME} in {took}, {'with' if knows_edns else 'without'} EDNS"
    if may_refuse_edns(wire) and not knows_edns:
        problem, remedy = "each name may cost a second query", "use a server that knows RFC 6891"
    else:
        problem = "" if code in ("NOERROR", "NXDOMAIN") else "it cannot be used for names of the internet"
        remedy = "see whether it reaches the servers of the internet; a closed network may not"
    return judged(seen, problem, remedy)._replace(topic="dns")


def roots() -> Iterator[Finding]:
    """The CA certificates by which backends are verified where nothing else is written."""
    from egressproxy.cli.trust_bundle import TrustProblem, certificates, system_roots

    for variable in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        named = os.environ.get(variable)
        if named and not os.access(named, os.R_OK):
            seen = f"${variable} names {named}, which cannot be read"
            yield Finding(FAILURE, seen, "correct or unset the variable")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    count = context.cert_store_stats()["x509_ca"]
    places = ssl.get_default_verify_paths()
    where = places.cafile or places.capath or "no file"
    if not count and places.capath is None:
        remedy = "install ca-certificates, or name a file of roots in $SSL_CERT_FILE"
        yield Finding(FAILURE, f"OpenSSL finds no root ({where}): no public server can be verified", remedy)
        return
    yield Finding(OK, f"{count} roots from {where}" if count else f"roots are looked up in {where}")
    try:
        found = certificates(system_roots())
    except TrustProblem:
        return
    for name, each in {each.subject.rfc4514_string(): each for each in found}.items():
        if each.not_valid_before_utc.year >= _STRICT_SINCE and (lacks := strict_problems(each)):
            seen = f"{name}: {', '.join(lacks)}; the gateway accepts it, strict clients (Python 3.13 on) do not"
            yield Finding(WARNING, seen, "have its owner issue it again by RFC 5280")


def strict_problems(certificate: Certificate) -> list[str]:
    """What a root lacks for X509_V_FLAG_X509_STRICT of OpenSSL, as far as its own extensions show it."""
    from cryptography.x509.oid import ExtensionOID

    try:
        is_critical = {each.oid: each.critical for each in certificate.extensions}
    except ValueError:
        return ["extensions that cannot be read"]
    basic = ExtensionOID.BASIC_CONSTRAINTS
    needed = {
        ExtensionOID.SUBJECT_KEY_IDENTIFIER: "subject key identifier", ExtensionOID.KEY_USAGE: "key usage",
        basic: "basic constraints",
    }  # fmt: skip
    lacks = [f"no {name}" for oid, name in needed.items() if oid not in is_critical]
    return lacks if is_critical.get(basic, True) else [*lacks, "basic constraints not critical"]


def clock() -> Iterator[Finding]:
    """Whether certificates and tokens can be judged by this clock. Nobody else is asked for the time."""
    now = time.time()
    shown = time.strftime("it is %Y-%m-%dT%H:%M:%SZ here", time.gmtime(now))
    if now < Path(__file__).stat().st_mtime - 86_400:
        seen = f"{shown}, before this program was installed: certificates are not valid yet"
        yield Finding(FAILURE, seen, "set the clock")
        return
    try:
        is_lone = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)) == _TIME_ERROR  # modes 0: only asks
    except (OSError, AttributeError):
        is_lone = False
    remedy = "compare it; run chrony or systemd-timesyncd, on the host of a container or virtual machine"
    yield judged(shown, "the kernel follows no time server" if is_lone else "", remedy)


def kernel() -> Iterator[Finding]:
    """What of the kernel the gateway uses, always or for some listeners."""
    from egressproxy.upstream.system_files import Ipv6Route

    yield Finding(OK, f"Linux {platform.release()}")
    calls: tuple[tuple[str, str, Callable[[], int]], ...] = (
        (FAILURE, "memfd_create", lambda: os.memfd_create("egressproxy-doctor", os.MFD_CLOEXEC)),
        (WARNING, "pidfd_open, which `run -- CMD` needs,", lambda: os.pidfd_open(os.getpid())),
    )
    for level, name, call in calls:
        try:
            os.close(call())
        except (OSError, AttributeError) as error:
            yield Finding(level, f"{name} is refused: {error}", "allow it in the seccomp profile")
    if why := why_unusable("::1"):
        yield Finding(OK, f"no IPv6: {why}; clients and backends are reached by IPv4 alone")
    else:
        yield Finding(OK, f"IPv6, {'with' if Ipv6Route().exists() else 'without'} a route to the internet")
    if not tracks_connections():
        yield Finding(OK, f"no connection tracking: transparent listeners need {CONNTRACK}")
    try:
        most = int(Path("/proc/sys/net/core/somaxconn").read_text())
    except (OSError, ValueError):
        return
    if most < BACKLOG:
        seen = f"{most} connections may wait to be accepted, the gateway asks for {BACKLOG}"
        yield Finding(WARNING, seen, f"sysctl net.core.somaxconn={BACKLOG}")


def tracks_connections() -> bool:
    """Whether the kernel can tell where a redirected connection was going."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        try:
            sock.getsockopt(socket.IPPROTO_IP, _SO_ORIGINAL_DST, 16)
        except OSError as error:
            return error.errno != errno.ENOPROTOOPT
    return True


def environment() -> Iterator[Finding]:
    """Variables that lead other programs to a proxy, which the gateway does not follow."""
    seen: dict[str, list[str]] = {}
    for name, value in sorted(os.environ.items()):
        if name.lower() in ("https_proxy", "http_proxy", "all_proxy") and value:
            # Without user, password, path and query: each may be a secret.
            where = re.split("[/?#]", value.partition("://")[2].rpartition("@")[2] or value.rpartition("@")[2])[0]
            seen.setdefault(where, []).append(f"${name}")
    remedy = "if the internet is reached only by that proxy, name it as `parent` in an EgressPolicy: docs/parents.md"
    for where, names in seen.items():
        if re.fullmatch(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", where):
            yield Finding(OK, f"{', '.join(names)}: {where}, a proxy on this machine")
        else:
            yield Finding(WARNING, f"{', '.join(names)}: {where}; the gateway does not follow these variables", remedy)


def packages() -> Iterator[Finding]:
    """The optional packages that are there."""
    extras = (("cel", "cel", "conditions in CEL"), ("vault", "hvac", "credentials from a vault"),
              ("kubernetes", "kubernetes", "--source kubernetes"))  # fmt: skip
    there = [name for name, module, _ in extras if find_spec(module) is not None]
    missing = [f"{name} ({use})" for name, _, use in extras if name not in there]
    seen = f"optional: {', '.join(there) or 'none'}" + (f"; not installed: {', '.join(missing)}" if missing else "")
    yield Finding(OK, seen, "pip install 'egressproxy[NAME]' where it is needed" if missing else "")


_REMEDIES: Final[dict[type[OSError], str]] = {
    ssl.SSLCertVerificationError: "a corporate proxy may open TLS: add its root to the system's, or correct the clock",
    socket.gaierror: "see the lines of dns",
    ConnectionRefusedError: "see whether a server listens there",
    OSError: "a firewall may drop it: use the parent proxy of the network (docs/parents.md)",
}


def target_of(written: str) -> Authority:
    """HOST or HOST:PORT of --connect. Raises click.UsageError."""
    try:
        return parse_authority(written.encode("ascii"), 443)
    except (AuthorityError, UnicodeEncodeError):
        raise click.UsageError(f"--connect {written!r} is no HOST or HOST:PORT") from None


def connection(target: Authority) -> Iterator[Finding]:
    """Whether this machine reaches a server, and verifies its certificate by the system's roots."""
    began = time.monotonic()
    context = ssl.create_default_context()
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as the gateway verifies
    try:
        with (
            socket.create_connection((target.host, target.port), ANSWER_S) as sock,
            context.wrap_socket(sock, server_hostname=target.host) as tls,
        ):
            took = (time.monotonic() - began) * 1000
            yield Finding(OK, f"{target} ({sock.getpeername()[0]}): {tls.version()}, verified, {took:.0f} ms")
    except OSError as error:
        remedy = next(text for kind, text in _REMEDIES.items() if isinstance(error, kind))
        yield Finding(FAILURE, f"{target}: {getattr(error, 'verify_message', '') or error.strerror or error}", remedy)


#: What looks at each topic.
PROBES: Final[dict[str, Callable[[], Iterable[Finding]]]] = {
    "build": build, "dns": dns, "roots": roots, "time": clock, "kernel": kernel, "environment": environment,
    "packages": packages,
}  # fmt: skip
