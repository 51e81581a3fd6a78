"""The probes of `doctor` that look at what the options of `run` ask for: the limits of its processes, its files, its
configuration, and the ports and DNS servers that this names.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from egressproxy.cli.check import examine
from egressproxy.cli.machine_probes import CONNTRACK, FAILURE, OK, WARNING, Finding, asked, judged, tracks_connections
from egressproxy.model.encoding import counted
from egressproxy.model.listening_place import place_text
from egressproxy.model.unix_socket import is_unix, parse_unix_socket
from egressproxy.net.listening import bind, remedy, why_unusable
from egressproxy.net.process import LEAST_BYTES, cgroup_limit, cpu_quota, memory_for_each
from egressproxy.run_options import ADMIN_IS_CLOSED, RunOptions

if TYPE_CHECKING:
    from egressproxy.config.reading.load import ResourceSet
    from egressproxy.ir.gateway import ConfigIR

#: Two descriptors for each exchange: with fewer a gateway serves only a few hundred clients.
_FEW_DESCRIPTORS: Final = 4096
#: Findings of a configuration that are shown; `check` shows all.
_MAX_SHOWN: Final = 20


def limits(options: RunOptions, root: Path = Path("/")) -> Iterator[Finding]:
    """Descriptors, memory and processors, against what so many workers need."""
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    shown = "any number of" if most == resource.RLIM_INFINITY else f"{most:,}"
    problem = "an exchange takes two" if 0 <= most < _FEW_DESCRIPTORS else ""
    remedy = "LimitNOFILE= in systemd, ulimits in Docker, `ulimit -Hn` in a shell"
    yield judged(f"{shown} file descriptors", problem, remedy)
    workers = counted(options.workers, "worker")
    if limit := cgroup_limit(root):
        each = options.max_memory or memory_for_each(options.workers, root)
        problem = "that is more than there is" if each * options.workers > limit else ""
        remedy = f"raise the limit, or give fewer --workers: each has {LEAST_BYTES >> 20} MiB or more"
        seen = f"the cgroup allows {limit >> 20} MiB, {each >> 20} MiB for each of {workers}"
        yield judged(seen, problem, remedy)
    processors, quota = len(os.sched_getaffinity(0)), cpu_quota(root)
    usable = max(1, int(min(processors, quota or processors)))
    by_quota = f", {quota:g} of them by the quota" if quota else ""
    problem = "more workers than processors" if options.workers > usable else ""
    yield judged(f"{counted(processors, 'processor')}{by_quota}, {workers}", problem, f"--workers {usable}")


def files(options: RunOptions) -> Iterator[Finding]:
    """Whether the folders of the options can be written."""
    log = None if options.access_log in (None, "off") else Path(str(options.access_log))
    if (folder := options.state_dir) is not None:  # the gateway makes it
        place = next(each for each in (folder, *folder.absolute().parents) if os.path.exists(each))
        yield _writable(place, "--state-dir" if place == folder else f"--state-dir {folder} is to be made")
    for file, option in (
        (log, f"--access-log {log}"), (options.takeover, "--takeover"), (options.tls_key_log, "--tls-key-log"),
    ):  # fmt: skip
        if file is not None:
            yield _writable(file.parent, f"the folder of {option}")
    for folder in options.socket_dirs:
        yield _writable(folder, "--socket-dir")
    if options.api_token_file is not None:
        yield from _exposed([options.api_token_file])


def _writable(folder: Path, what: str) -> Finding:
    problem, remedy = "", "change its owner or mode"
    if not os.path.isdir(folder):
        problem, remedy = "is no folder" if os.path.exists(folder) else "does not exist", f"mkdir -p {folder}"
    elif not os.access(folder, os.W_OK | os.X_OK):
        problem = "this user cannot write there"
    return judged(f"{what}: {folder}", problem, remedy, FAILURE)


def _exposed(secrets: Iterable[Path]) -> Iterator[Finding]:
    """Which of these files every user of the machine can read."""
    modes = {file: file.stat().st_mode for file in secrets if os.path.isfile(file)}
    exposed = sorted(file for file, mode in modes.items() if mode & stat.S_IROTH)
    for file in exposed[:_MAX_SHOWN]:
        remedy = f"chmod o-r {file}, or `defaultMode: 0440` of a mounted Secret"
        yield Finding(WARNING, f"every user of this machine can read {file}", remedy, "files")
    if modes and not exposed:
        yield Finding(OK, f"{counted(len(modes), 'file')} of secrets, which other users cannot read", topic="files")


def ports(options: RunOptions) -> Iterator[Finding]:
    """Whether the addresses of the options could be bound, and the admin address has a token if it needs one."""
    places = [("--admin", options.admin), ("--metrics", options.metrics)]
    if not options.is_configured:
        places.append(("the open proxy", ("127.0.0.1", options.open_port)))
    if not _is_handed_over(options):
        yield from (_bound(what, *place) for what, place in places if place is not None)
    else:
        yield Finding(OK, f"the gateway at {options.takeover} hands its sockets over")
    if options.admin is not None and options.lacks_token:
        yield Finding(WARNING, ADMIN_IS_CLOSED, f"give one, or --admin 127.0.0.1:{options.admin[1]}")


def _is_handed_over(options: RunOptions) -> bool:
    return options.takeover is not None and os.path.exists(options.takeover)


def configuration(options: RunOptions) -> Iterator[Finding]:
    """What `check` finds, in short; who else can read its Secrets; and its ports and DNS servers."""
    from egressproxy.config.reading.problems import Severity
    from egressproxy.processes.loader.compilation import Machine

    if options.cluster is not None:
        yield Finding(OK, "objects of the API server are not looked at here: `kubectl get -o wide` shows their status")
    state = options.state_dir if options.cluster is None else None
    state = state if state is not None and os.path.isdir(state) else None
    if not options.sources and state is None:
        return
    machine = Machine(why_unusable, experimental=options.experimental)
    resources, compiled, found = examine(options.sources, options.bind, machine, state)
    problems = [*compiled.problems, *(each for each in found if each.severity is Severity.ERROR)]
    if not problems:  # `check` fails for both, too
        problems = [each for each in found if each.severity is Severity.UNSERVED]
    level = FAILURE if problems else WARNING
    shown = problems or [each for each in found if each.severity is Severity.WARNING]
    yield from (Finding(level, str(each)) for each in shown[:_MAX_SHOWN])
    if len(shown) > _MAX_SHOWN:
        yield Finding(WARNING, f"and {len(shown) - _MAX_SHOWN} more", "`egressproxy check` shows all")
    if not shown:
        yield Finding(OK, f"{counted(len(resources), 'object')}, all served as written")
    yield from _exposed(_secret_files(resources))
    if not compiled.problems:
        if not _is_handed_over(options):
            yield from _listeners(compiled.spec)
        yield from _dns_servers(compiled.spec)


def _secret_files(resources: ResourceSet) -> Iterator[Path]:
    """The files with Secrets: manifests, and those of --secret and --secrets."""
    from egressproxy.config.resources.core import Secret

    for place in {Path(each.origin.file) for each in resources.objects if isinstance(each, Secret)}:
        # Of a mounted Secret the folders `..…` have the files once more.
        yield from (each for each in place.iterdir() if each.suffix != ".crt") if place.is_dir() else [place]


def _listeners(spec: ConfigIR) -> Iterator[Finding]:
    places: dict[tuple[str, int], list[str]] = {}
    for listener in spec.listeners:
        if listener.protocol.value.endswith("/transparent") and not tracks_connections():
            seen = f"listener {listener.gateway}/{listener.name}: the kernel tracks no connections"
            yield Finding(FAILURE, seen, f"load {CONNTRACK}", "ports")
        for address in listener.addresses:
            places.setdefault((address, listener.port), []).append(f"{listener.gateway}/{listener.name}")
    for (address, port), names in places.items():
        what = f"listener {', '.join(names)}"
        if is_unix(address):
            folder = Path(parse_unix_socket(address).path).parent
            yield _writable(folder, f"the folder of {what}")._replace(topic="ports")
        else:
            yield _bound(what, address, port)


def _bound(what: str, address: str, port: int) -> Finding:
    """Whether an address is free. A socket is bound for an instant, and closed."""
    place = place_text(address, port)
    try:
        bind(address, port).close()
    except OSError as error:
        do = remedy(error.errno).strip(" ()")
        return Finding(FAILURE, f"{what}: cannot bind {place}: {error.strerror or error}", do, "ports")
    return Finding(OK, f"{what}: {place} is free", topic="ports")


def _dns_servers(spec: ConfigIR) -> Iterable[Finding]:
    """Whether the servers that policies name answer, verified as the gateway verifies them."""
    from egressproxy.ir.backend import BackendTlsIR
    from egressproxy.upstream.dns_server import parse_server

    named = ((dns, each) for dns in (listener.policy.dns for listener in spec.listeners) for each in dns.servers)
    servers = {parse_server(each, dns.transport): BackendTlsIR(ca_pem=dns.ca_pem) for dns, each in named}
    return asked(islice(servers.items(), _MAX_SHOWN))


#: What looks at each topic.
PROBES: Final[dict[str, Callable[[RunOptions], Iterable[Finding]]]] = {
    "limits": limits, "files": files, "ports": ports, "configuration": configuration,
}  # fmt: skip
