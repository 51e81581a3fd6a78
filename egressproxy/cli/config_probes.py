"""The probes of `doctor` that look at what the options of `run` ask for: the limits of its processes, its files, its
configuration, and the ports and DNS servers that this names.
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from egressproxy.cli.check import examine
from egressproxy.cli.findings import FAILURE, OK, WARNING, Finding
from egressproxy.cli.machine_probes import ANSWER_S, ASKED_NAME, CONNTRACK, asked, tracks_connections
from egressproxy.model.listening_place import place_text
from egressproxy.model.unix_socket import is_unix, parse_unix_socket
from egressproxy.net.listening import REMEDIES, bind, why_unusable
from egressproxy.net.process import LEAST_BYTES, cgroup_limit, memory_for_each
from egressproxy.run_options import RunOptions

if TYPE_CHECKING:
    from egressproxy.ir.gateway import ConfigIR
    from egressproxy.ir.policy import DnsIR
    from egressproxy.upstream.dns_server import Server

#: Two descriptors for each exchange: with fewer a gateway serves only a few hundred clients.
_FEW_DESCRIPTORS: Final = 4096
#: Findings of a configuration that are shown; `check` shows all.
_MAX_SHOWN: Final = 20
#: Manifests and keys that are looked at for their modes.
_MAX_FILES: Final = 1000


def limits(options: RunOptions, root: Path = Path("/")) -> Iterator[Finding]:
    """Descriptors, memory and processors, against what so many workers need."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = "unlimited" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    if hard != resource.RLIM_INFINITY and hard < _FEW_DESCRIPTORS:
        yield Finding(
            WARNING, "limits", f"{shown} file descriptors at most: an exchange takes two",
            "LimitNOFILE= in systemd, ulimits in Docker, `ulimit -Hn` in a shell",
        )  # fmt: skip
    else:
        yield Finding(OK, "limits", f"{shown} file descriptors (`run` raises its limit from {soft:,})")
    workers = options.workers
    limit = cgroup_limit(root)
    if limit and options.max_memory is None:
        each = memory_for_each(workers, root)
        seen = (
            f"the cgroup allows {limit >> 20} MiB: {each >> 20} MiB for each of {workers} worker{'s' * (workers > 1)}"
        )
        if each * workers > limit:
            remedy = f"raise the limit, or give fewer --workers: each has {LEAST_BYTES >> 20} MiB or more"
            yield Finding(WARNING, "limits", f"{seen}, which is more than there is", remedy)
        else:
            yield Finding(OK, "limits", seen)
    elif not limit:
        yield Finding(OK, "limits", "no limit of memory")
    processors, quota = len(os.sched_getaffinity(0)), cpu_quota(root)
    usable = min(float(processors), quota or processors)
    by_quota = f", {quota:g} of them by the quota" if quota else ""
    seen = f"{processors} processors{by_quota}, {workers} worker{'s' * (workers > 1)}"
    if workers > max(1, usable):
        yield Finding(WARNING, "limits", f"{seen}: more workers than processors", f"--workers {max(1, int(usable))}")
    else:
        yield Finding(OK, "limits", seen)


def cpu_quota(root: Path = Path("/")) -> float:
    """How many processors the cgroup allows; 0: no quota. Sources: cgroup-v2.rst (cpu.max), sched-bwc.rst (v1)."""
    own = ""
    try:
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "cpu" in controllers.split(","):
                own = path.strip("/")
        folders = [root / "sys/fs/cgroup" / own, root / "sys/fs/cgroup"]
    except (OSError, ValueError):
        return 0.0
    found = []
    for folder in folders:
        for quota_file, period_file in (("cpu.max", ""), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
            try:
                words = (folder / quota_file).read_text().split()
                words += (folder / period_file).read_text().split() if period_file else []
                quota, period = int(words[0]), int(words[1])
            except (OSError, ValueError, IndexError):  # not there; or "max"
                continue
            if quota > 0 and period > 0:
                found.append(quota / period)
    return min(found, default=0.0)


def files(options: RunOptions) -> Iterator[Finding]:
    """Whether folders can be written, and who else may read secrets."""
    if options.state_dir is not None:
        yield _writable(options.state_dir, "--state-dir", is_made=True)
    if options.access_log not in (None, "off"):
        yield _writable(Path(str(options.access_log)).parent, f"the folder of --access-log {options.access_log}")
    if options.takeover is not None:
        yield _writable(options.takeover.parent, "the folder of --takeover")
    if options.tls_key_log is not None:
        yield _writable(options.tls_key_log.parent, "the folder of --tls-key-log")
    for folder in options.socket_dirs:
        yield _writable(folder, "--socket-dir")
    secrets = [options.api_token_file] if options.api_token_file is not None else []
    secrets += _secret_files(options)
    exposed = [file for file in secrets if (mode := _mode(file)) is not None and mode & stat.S_IROTH]
    for file in exposed[:_MAX_SHOWN]:
        yield Finding(
            WARNING,
            "files",
            f"every user of this machine can read {file}",
            f"chmod o-r {file}, or `defaultMode: 0440` of a mounted Secret",
        )
    if secrets and not exposed:
        yield Finding(OK, "files", f"{len(secrets)} files of secrets, which other users cannot read")


def _writable(folder: Path, what: str, *, is_made: bool = False) -> Finding:
    """`is_made`: the gateway makes a folder that does not exist."""
    place = folder
    while is_made and not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        why = "is no folder" if place.exists() else "does not exist"
        return Finding(FAILURE, "files", f"{what}: {place} {why}", f"mkdir -p {place}")
    if not os.access(place, os.W_OK | os.X_OK):
        return Finding(FAILURE, "files", f"{what}: this user cannot write in {place}", "change its owner or mode")
    made = "" if place == folder else f" ({folder} is made)"
    return Finding(OK, "files", f"{what}: {place} can be written{made}")


def _secret_files(options: RunOptions) -> list[Path]:
    """Files of --secret and --secrets, keys of CAs, and manifests with a Secret."""
    found: list[Path] = []
    for source in options.secrets:
        if source.path is not None and not source.is_trust_bundle:
            inside = sorted(source.path.rglob("*"))[:_MAX_FILES] if source.path.is_dir() else [source.path]
            # Of a mounted Secret the folders `..…` have the files once more.
            found += [each for each in inside if ".." not in str(each.relative_to(source.path))]
    for path in options.config:
        for file in sorted(path.iterdir())[:_MAX_FILES] if path.is_dir() else [path]:
            if file.suffix == ".key" or (file.suffix in (".yaml", ".yml", ".json") and _has_secret(file)):
                found.append(file)
    return [file for file in found if file.is_file() and not file.name.endswith(".crt")]


def _has_secret(file: Path) -> bool:
    try:
        text = file.read_bytes()
    except OSError:
        return False  # the configuration's own line says so
    return b"kind: Secret\n" in text or b'"kind": "Secret"' in text


def _mode(file: Path) -> int | None:
    try:
        return file.stat().st_mode
    except OSError:
        return None


class Asked:
    """The configuration that the options name, read once for all probes that need it."""

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._read: tuple[ConfigIR | None, list[Finding]] | None = None

    def configuration(self) -> list[Finding]:
        """What `check` finds, in short."""
        return self._examined()[1]

    def ports(self) -> Iterator[Finding]:
        """Whether each address that would be bound is free. A socket is bound for an instant, and closed."""
        options = self._options
        if options.takeover is not None and options.takeover.exists():
            yield Finding(OK, "ports", f"the gateway at {options.takeover} hands its sockets over")
            return
        for option, place in (("--admin", options.admin), ("--metrics", options.metrics)):
            if place is not None:
                yield _bound(option, *place)
        if not options.is_configured:
            yield _bound("the open proxy", "127.0.0.1", options.open_port)
        spec = self._examined()[0]
        listeners = spec.listeners if spec is not None else ()
        if any(each.protocol.value.endswith("/transparent") for each in listeners) and not tracks_connections():
            yield Finding(
                FAILURE, "ports", "transparent listeners: the kernel tracks no connections", f"load {CONNTRACK}"
            )
        places: dict[tuple[str, int], list[str]] = {}
        for listener in listeners:
            for address in listener.addresses:
                places.setdefault((address, listener.port), []).append(f"{listener.gateway}/{listener.name}")
        for (address, port), names in places.items():
            what = f"listener {', '.join(names)}"
            if is_unix(address):
                yield _writable(Path(parse_unix_socket(address).path).parent, f"the folder of {what}")
            else:
                yield _bound(what, address, port)

    def dns_servers(self) -> Iterator[Finding]:
        """Whether the servers that policies name answer."""
        from egressproxy.upstream.dns_server import parse_server

        spec = self._examined()[0]
        servers: dict[Server, DnsIR] = {}
        for listener in spec.listeners if spec is not None else ():
            dns = listener.policy.dns
            servers |= {parse_server(each, dns.transport): dns for each in dns.servers}
        if servers:
            with ThreadPoolExecutor(min(len(servers), _MAX_SHOWN)) as pool:
                yield from pool.map(_asked, servers, servers.values())

    def _examined(self) -> tuple[ConfigIR | None, list[Finding]]:
        with self._lock:
            if self._read is None:
                self._read = self._examine() if self._options.sources else (None, [])
            return self._read

    def _examine(self) -> tuple[ConfigIR | None, list[Finding]]:
        from egressproxy.config.reading.problems import Severity
        from egressproxy.processes.loader.compilation import Machine

        options = self._options
        machine = Machine(why_unusable, experimental=options.experimental)
        resources, compiled, found = examine(options.sources, options.bind, machine)
        problems = [*compiled.problems, *(each for each in found if each.severity is Severity.ERROR)]
        if not problems:  # `check` fails for both, too
            problems = [each for each in found if each.severity is Severity.UNSERVED]
        others = [each for each in found if each.severity is Severity.WARNING]
        shown = [Finding(FAILURE, "configuration", str(each)) for each in problems[:_MAX_SHOWN]]
        if not problems:
            shown = [Finding(WARNING, "configuration", str(each)) for each in others[:_MAX_SHOWN]]
        left = len(problems or others) - len(shown)
        if left > 0:
            shown.append(Finding(WARNING, "configuration", f"and {left} more", "`egressproxy check` shows all"))
        if not shown:
            shown = [Finding(OK, "configuration", f"{len(resources)} objects, all served as written")]
        return compiled.spec if not compiled.problems else None, shown


def _bound(what: str, address: str, port: int) -> Finding:
    try:
        bind(address, port).close()
    except OSError as error:
        why = f"{what}: cannot bind {place_text(address, port)}: {error.strerror or error}"
        remedy = REMEDIES.get(error.errno or 0, "").strip(" ()")
        return Finding(FAILURE, "ports", why, remedy)
    return Finding(OK, "ports", f"{what}: {place_text(address, port)} is free")


def _asked(server: Server, dns: DnsIR) -> Finding:
    return asked(server) if server.transport == "udp" else asyncio.run(_over_connection(server, dns))


async def _over_connection(server: Server, dns: DnsIR) -> Finding:
    """What a server answers over TCP, TLS or HTTPS, verified as the gateway verifies it."""
    from egressproxy.ir.backend import BackendTlsIR
    from egressproxy.upstream.dns_client import DnsClient, DnsFailure
    from egressproxy.upstream.dns_message import encode_name

    client = DnsClient(tls=BackendTlsIR(ca_pem=dns.ca_pem))
    try:
        await client.ask([server], encode_name(ASKED_NAME), 1, ANSWER_S)
    except DnsFailure as failure:
        return Finding(FAILURE, "dns", str(failure), "see whether it runs, and the fields of `dns` in the policy")
    finally:
        client.close()
    return Finding(OK, "dns", f"{server.label} answers for {ASKED_NAME}")
