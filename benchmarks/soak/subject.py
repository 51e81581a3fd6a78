"""The gateway under measurement: the real program with the whole policy path, and what can be seen of it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import resource
import socket
import ssl
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import trustme

from benchmarks.processes import Child, StartError

FOLDER = Path(__file__).parent
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024
READY_S = 60.0
ANSWER_S = 30.0
#: Rules that match nothing of what is asked for: a table that is not empty.
OTHER_ROUTES = 200
_GAUGES = re.compile(
    r"^(egress_downstream_connections|egress_tunnels_active|egress_upstream_connections|egress_requests_total"
    r"|egress_config_generation|egress_config_last_reload_success|egress_access_log_dropped_total"
    r"|egress_request_failures_total)(?:\{([^}]*)\})? ([0-9.e+-]+)$",
    re.MULTILINE,
)
_REASON = re.compile(r'reason="([^"]*)"')


class Delays:
    """How often the event loop was how late, by whole milliseconds."""

    def __init__(self) -> None:
        self._by_ms: Counter[int] = Counter()
        self.worst_ms = 0.0

    def read(self, report: dict[str, Any]) -> None:
        """Add what a probe says."""
        self._by_ms.update({int(ms): count for ms, count in report["by_ms"].items()})
        self.worst_ms = max(self.worst_ms, report["worst_ms"])

    def add(self, other: Delays) -> None:
        self._by_ms.update(other._by_ms)
        self.worst_ms = max(self.worst_ms, other.worst_ms)

    def percentile(self, share: float) -> float:
        """The upper edge of the millisecond that holds it; 0 where nothing was measured."""
        left = sum(self._by_ms.values()) * share
        for late in sorted(self._by_ms):
            left -= self._by_ms[late]
            if left <= 0:
                return min(late + 1.0, self.worst_ms)
        return self.worst_ms


class Lag:
    """Of the event loop, of several processes all together: `busy` is what they spent computing of `late`."""

    def __init__(self) -> None:
        self.late = Delays()
        self.busy = Delays()

    def read(self, report: dict[str, Any]) -> None:
        self.late.read(report["late"])
        self.busy.read(report["busy"])

    def add(self, other: Lag) -> None:
        self.late.add(other.late)
        self.busy.add(other.busy)

    def as_dict(self) -> dict[str, float]:
        """Percentiles in milliseconds."""
        found = {f"p{share:g}": self.busy.percentile(share / 100) for share in (50, 90, 99, 99.9)}
        machine = {"late p99": self.late.percentile(0.99), "late worst": self.late.worst_ms}
        return {**found, "worst": self.busy.worst_ms, **machine}


@dataclass(frozen=True)
class Sample:
    """What the gateway is at one moment. `at_s` counts from the beginning of the run; memory is in KiB."""

    at_s: float
    resident_kib: int
    descriptors: int
    downstream: int
    tunnels: int
    upstream: int
    tasks: int
    requests: int
    lag_p99_ms: float
    lag_worst_ms: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


class _Gateway(Child):
    def pids(self) -> list[int]:
        return self._tree()

    @property
    def errors(self) -> Path:
        return self._errors


class Subject:
    """`start` brings it up, `close` ends it. Its ports are `forward`, `reverse`, `secure` (TLS) and `probe`."""

    def __init__(
        self,
        folder: Path,
        core: int | None,
        *,
        workers: int = 1,
        descriptors: int = 0,
        patience_s: int = 5,
    ) -> None:
        """`descriptors` limits how many it may open; 0 leaves it as it is.

        `patience_s` is how long a connection or a tunnel may be idle, and a body stall; an answer may take three times
        as long.
        """
        self.folder = folder
        self.workers = workers
        self.forward, self.reverse, self.secure, self.probe, self.admin = _free_ports(5)
        self.lag = Lag()
        self._core = core
        self._descriptors = descriptors
        self._patience_s = patience_s
        self._values: dict[str, str] = {}
        self._extra = ""
        self._child: _Gateway | None = None
        self._begun = time.monotonic()
        self._asked: set[int] = set()
        ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self._leaf = ca.issue_cert("*.soak.example", key_type=trustme.KeyType.ECDSA)
        self._ca_pem = ca.cert_pem.bytes().decode()

    # --- its life ------------------------------------------------------------------------------------------------
    def server_context(self) -> ssl.SSLContext:
        """For an origin that is reached over TLS."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._leaf.configure_cert(context)
        return context

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self._ca_pem)

    async def start(self, *, plain: int, tls: int, dns: int) -> None:
        """With origins at these ports. Raises StartError."""
        certificate = b"".join(blob.bytes() for blob in self._leaf.cert_chain_pems).decode()
        self._values = {
            "PATIENCE": f"{self._patience_s}s",
            "ANSWER": f"{3 * self._patience_s}s",
            "FORWARD": str(self.forward),
            "REVERSE": str(self.reverse),
            "SECURE": str(self.secure),
            "PROBE": str(self.probe),
            "PLAIN": str(plain),
            "TLS": str(tls),
            "DNS": str(dns),
            "CA_PEM": json.dumps(self._ca_pem),
            "CERTIFICATE_PEM": json.dumps(certificate),
            "KEY_PEM": json.dumps(self._leaf.private_key_pem.bytes().decode()),
        }
        config = self.folder / "config"
        config.mkdir()
        (config / "probe.py").write_bytes((FOLDER / "probe.py").read_bytes())
        self.configure(0)
        command = [
            sys.executable, "-m", "egressproxy", "run", "--config", str(config), "--admin", f"127.0.0.1:{self.admin}",
            "--access-log", str(self.folder / "access.log"), "--drain-timeout", "1",
        ]  # fmt: skip
        if self.workers > 1:
            command += ["--workers", str(self.workers)]
        if self._descriptors:
            limit = f"import os,resource,sys;resource.setrlimit(resource.RLIMIT_NOFILE,({self._descriptors},)*2);"
            command = [sys.executable, "-c", limit + "os.execv(sys.argv[1],sys.argv[1:])", *command]
        self._child = _Gateway("gateway", command, self.folder, self._core)
        deadline = time.monotonic() + READY_S
        while not await self._is_ready():
            if not self._child.is_running() or time.monotonic() > deadline:
                raise StartError(f"the gateway did not start: {self._child.complaint()}")
            await asyncio.sleep(0.05)
        await self.ask_probe()
        self.lag = Lag()
        self._begun = time.monotonic()

    def close(self) -> int:
        """End it; its exit status is not known to us, so what it complained of is in `complaints`."""
        if self._child is not None:
            self._child.stop()
        return 0

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.is_running()

    def cpu_s(self) -> float:
        assert self._child is not None
        return self._child.cpu_s()

    def resident_kib(self) -> int:
        """Resident memory of the process tree; pages that its processes share count for each (proc(5), statm)."""
        assert self._child is not None
        pages = 0
        for pid in self._child.pids():
            with suppress(OSError):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * PAGE_KIB

    def descriptors(self) -> int:
        """Open descriptors of the process tree."""
        assert self._child is not None
        count = 0
        for pid in self._child.pids():
            with suppress(OSError):
                count += len(os.listdir(f"/proc/{pid}/fd"))
        return count

    def complaints(self) -> list[str]:
        """Diagnostics of level error but for refused configurations, and tracebacks: a soak has none."""
        assert self._child is not None
        found = []
        is_refusal = False
        for line in self._child.errors.read_text("utf-8", "replace").splitlines():
            words = line.split(" ", 3)
            if len(words) > 2 and words[1] == "error":
                is_refusal = is_refusal_line(words[3] if len(words) > 3 else "") or is_refusal
                if not is_refusal:
                    found.append(line)
            elif len(words) > 2 and words[1] in ("info", "warning"):
                is_refusal = False
            elif "Traceback" in line:
                found.append(line)
        return found

    # --- its configuration -----------------------------------------------------------------------------------------
    def configure(self, change: int, *, extra: str | None = None) -> None:
        """Put a configuration in place that differs from others by `change`, with `extra` manifests behind it.

        The extra ones stay for later changes.
        """
        text = (FOLDER / "gateway.yaml").read_text("utf-8")
        for name, value in {**self._values, "CHANGE": str(change)}.items():
            text = text.replace(f"@{name}@", value)
        if extra is not None:
            self._extra = extra
        self._put(text + self._extra + "".join(_other_route(number) for number in range(OTHER_ROUTES)))

    def break_configuration(self) -> None:
        self._put("kind: Gateway\nspec: [this is not")

    def _put(self, text: str) -> None:
        fresh = self.folder / "config" / ".gateway.new"
        fresh.write_text(text, "utf-8")
        fresh.replace(self.folder / "config" / "gateway.yaml")

    # --- what it says ----------------------------------------------------------------------------------------------
    async def metrics(self) -> tuple[dict[str, float], dict[str, float]]:
        """Sums of the metrics that we look at, and failed requests by their reason."""
        sums: dict[str, float] = {}
        failures: dict[str, float] = {}
        for match in _GAUGES.finditer(await self._get(self.admin, "/metrics")):
            sums[match[1]] = sums.get(match[1], 0.0) + float(match[3])
            if match[1] == "egress_request_failures_total":
                reason = _REASON.search(match[2] or "")
                name = reason[1] if reason else "?"
                failures[name] = failures.get(name, 0.0) + float(match[3])
        return sums, failures

    async def ask_probe(self) -> tuple[Lag, int]:
        """The lag since it was last asked, and the tasks there are; of every worker. `lag` keeps the whole."""
        reports = await self._ask_workers("/")
        lag = Lag()
        for report in reports:
            lag.read(report)
        self.lag.add(lag)
        return lag, of_each(reports, "tasks")

    async def collect_garbage(self) -> int:
        """Objects in cycles that the collectors of the workers have found since the start, now included, also among
        what reloads have frozen.
        """
        return of_each(await self._ask_workers("/collect"), "garbage")

    async def _ask_workers(self, path: str) -> list[dict[str, Any]]:
        """Reports until each worker has given one: which of them is asked is not for us to choose."""
        reports: list[dict[str, Any]] = []
        for _ in range(1 if self.workers == 1 else self.workers * 20):
            reports.append(json.loads(await self._get(self.probe, path)))
            if len({report["pid"] for report in reports}) == self.workers:
                break
        return reports

    async def sample(self) -> Sample:
        sums, _ = await self.metrics()
        lag, tasks = await self.ask_probe()
        return Sample(
            round(time.monotonic() - self._begun, 2),
            self.resident_kib(),
            self.descriptors(),
            int(sums.get("egress_downstream_connections", 0)),
            int(sums.get("egress_tunnels_active", 0)),
            int(sums.get("egress_upstream_connections", 0)),
            tasks,
            int(sums.get("egress_requests_total", 0)),
            lag.busy.percentile(0.99),
            lag.busy.worst_ms,
        )

    async def wait_for_generation(self, generation: int, within_s: float = 60.0) -> None:
        """Raises TimeoutError."""
        async with asyncio.timeout(within_s):
            while (await self.metrics())[0].get("egress_config_generation") != generation:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def _is_ready(self) -> bool:
        try:
            await self._get(self.admin, "/readyz")
        except (OSError, EOFError, StartError):
            return False
        return True

    @staticmethod
    async def _get(port: int, path: str) -> str:
        """The body of a 200 from loopback. Raises OSError, and StartError for another status."""
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
                answer = await reader.read()
            finally:
                writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise StartError(f"{path} on port {port}: {head[:100]!r}")
        if b"chunked" in head.lower():
            raise StartError(f"{path} on port {port} is chunked")
        return body.decode()


def of_each(reports: list[dict[str, Any]], name: str) -> int:
    """The sum over workers of what each has said last."""
    return sum({report["pid"]: int(report[name]) for report in reports}.values())


def is_refusal_line(message: str) -> bool:
    return "the new configuration is rejected" in message


def raise_descriptor_limit() -> int:
    """As many descriptors for this process as it may have; returns how many."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def _free_ports(count: int) -> list[int]:
    """Below the range of outgoing connections, and by chance, so that runs side by side do not meet."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", random.randrange(12_000, 20_000)))
            found.append(probe.getsockname()[1])
    return found


def _other_route(number: int) -> str:
    return f"""---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: other-{number:03d}}}
spec:
  parentRefs: [{{name: soak, sectionName: reverse}}]
  hostnames: [other-{number:03d}.soak.example]
  rules:
  - matches: [{{path: {{type: PathPrefix, value: /}}}}]
    backendRefs: [{{group: egressproxy.io, kind: Backend, name: plain}}]
"""
