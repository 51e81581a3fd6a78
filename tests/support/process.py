"""GatewayProcess: the real program, started as a user starts it, with manifests in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any

from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

from egressproxy.cli.main import main
from tests.support import manifests
from tests.support.net import free_port
from tests.support.waiting import WAIT_S

_Series = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class _Begun:
    """What a gateway had said, logged and counted when the test began that has it now."""

    stderr: int = 0
    records: int = 0
    counted: Mapping[_Series, float] = field(default_factory=dict)


class GatewayProcess:
    """`egressproxy run --config … --admin …`, its diagnostics and its access log in files below `folder`.

    With `objects` None it starts without any configuration. `start` returns when /readyz says so, and raises
    RuntimeError with the process's diagnostics when it does not. It is stopped by its own process id, with SIGTERM; a
    process that does not end is killed. Without `must_be_ready` a configuration that serves nothing is enough. `within`
    is a command that runs the rest of its line in its place. `verb` is what it does, "run" or "serve-filters".
    """

    def __init__(
        self,
        folder: Path,
        objects: Iterable[manifests.Manifest] | None,
        *,
        arguments: Iterable[str] = (),
        environment: dict[str, str] | None = None,
        must_be_ready: bool = True,
        within: Iterable[str] = (),
        verb: str = "run",
    ) -> None:
        self.config = folder / "config"
        self.access_log_path = folder / "access.log"
        self.stderr_path = folder / "stderr.log"
        self.admin_port = free_port()
        self.config.mkdir(parents=True)
        self._arguments = [*arguments]
        self._environment = environment or {}
        self._must_be_ready = must_be_ready
        self._within = [*within]
        self._verb = verb
        self._process: subprocess.Popen[bytes] | None = None
        self._read_to = 0
        self._records: list[dict[str, Any]] = []
        self._begun = _Begun()
        self._has_configuration = objects is not None
        if objects is not None:
            self.replace(objects)

    # --- its life -----------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> GatewayProcess:
        self.launch()
        self._wait_until_ready()
        return self

    def launch(self) -> None:
        """Start it, and wait for nothing."""
        command = [str(Path(sys.executable).with_name("egressproxy")), self._verb]
        command += ["--admin", f"127.0.0.1:{self.admin_port}"]
        if self._has_configuration:
            command += ["--config", str(self.config)]
        # No proxy variable of the machine may lead the gateway or its checks elsewhere.
        inherited = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        with open(self.access_log_path, "ab") as log, open(self.stderr_path, "ab") as errors:
            self._process = subprocess.Popen(
                [*self._within, *command, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=errors,
                env={**inherited, **self._environment},
            )

    def stop(self) -> int:
        """Ask it to drain and end; returns its exit status."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def __enter__(self) -> GatewayProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- its configuration --------------------------------------------------------------------------------------

    def replace(self, objects: Iterable[manifests.Manifest]) -> None:
        """Put another set of manifests in place, by one rename."""
        manifests.write(self.config / "manifests.yaml", objects)

    def replace_text(self, text: str) -> None:
        """Put any text in place of the manifests: a broken configuration, for one."""
        fresh = self.config / ".manifests.yaml.new"
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(self.config / "manifests.yaml")

    def reload(self, objects: Iterable[manifests.Manifest]) -> None:
        """Put another set of manifests in place, and return when it is in service."""
        before = self._generation()
        self.replace(objects)
        deadline = time.monotonic() + WAIT_S
        while self._generation() <= before:
            assert time.monotonic() < deadline, f"it is not in service\n{self.stderr[-2000:]}"
            time.sleep(0.02)

    def _generation(self) -> float:
        return self.metric("egress_config_generation")

    def verb(self, *arguments: str) -> Result:
        """A verb of the command line about this gateway, in the process of the test."""
        return verb(*arguments, "--admin", f"127.0.0.1:{self.admin_port}")

    # --- what it says -------------------------------------------------------------------------------------------

    @property
    def stderr(self) -> str:
        if not self.stderr_path.is_file():
            return "(the test itself reads it)"  # a pipe, which nobody writes to any more
        return self.stderr_path.read_bytes()[self._begun.stderr :].decode("utf-8", "replace")

    def wait_for_diagnostics(self, words: str, *, within_s: float = 60.0) -> None:
        """Return when these words stand in its diagnostics; raise AssertionError if they do not come."""
        deadline = time.monotonic() + within_s
        while words not in self.stderr:
            assert time.monotonic() < deadline, f"{words!r} is not there\n{self.stderr[-2000:]}"
            time.sleep(0.02)

    def admin(self, path: str) -> tuple[int, str]:
        """GET a path of the admin API: status and body."""
        with closing(HTTPConnection("127.0.0.1", self.admin_port, timeout=WAIT_S)) as connection:
            connection.request("GET", path, headers={"Connection": "close"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def metric(self, name: str, /, **labels: str) -> float:
        """The sum of a metric's samples with these labels; 0 where there is none."""
        begun = self._begun.counted
        # To parse every series would take 50 ms.
        lines = [line for line in self.admin("/metrics")[1].splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        return sum(
            value - begun.get((sample, of), 0)
            for _, (sample, of), value in _samples("\n".join(lines))
            if labels.items() <= dict(of).items()
        )

    def wait_for_metric(self, name: str, value: float) -> None:
        """Return when the metric has the value; raise AssertionError if it does not come to it."""
        deadline = time.monotonic() + WAIT_S
        while (found := self.metric(name)) != value:
            assert time.monotonic() < deadline, f"{name} is {found}, not {value}\n{self.stderr[-2000:]}"
            time.sleep(0.02)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The access log so far, one dictionary per line."""
        with open(self.access_log_path, "rb") as file:
            file.seek(self._read_to)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]  # the last line may be half written
        self._read_to += len(whole)
        self._records += [json.loads(line) for line in whole.splitlines()]
        return self._records[self._begun.records :]

    def mark(self) -> int:
        """How many records there are, once every exchange that is counted is logged and no tunnel is open.

        What is logged from then on belongs to what is done from then on.
        """
        deadline = time.monotonic() + WAIT_S
        while True:
            ended, tunnels = self.metric("egress_requests_total"), self.metric("egress_tunnels_active")
            if ended == len(self.records) and tunnels == 0:
                return len(self.records)
            assert time.monotonic() < deadline, (
                f"{ended} exchanges, {len(self.records)} records, {tunnels} tunnels open"
            )
            time.sleep(0.02)

    def wait_for_record(self, *, since: int = 0, **wanted: Any) -> dict[str, Any]:
        """The first access-log record from number `since` on with these fields; raises AssertionError if none comes."""
        deadline = time.monotonic() + WAIT_S
        while True:
            records = self.records[since:]
            for record in records:
                if wanted.items() <= record.items():
                    return record
            assert time.monotonic() < deadline, f"no record with {wanted} among {records}"
            time.sleep(0.01)

    def begin(self, objects: Iterable[manifests.Manifest]) -> None:
        """Serve these manifests alone, and forget what was said, logged and counted until now."""
        self.mark()
        self.reload(objects)
        records = self._begun.records + len(self.records)
        growing = ("counter", "histogram")
        counted = {of: value for kind, of, value in _samples(self.admin("/metrics")[1]) if kind in growing}
        self._begun = _Begun(self.stderr_path.stat().st_size, records, counted)

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the gateway ended with status {self._process.returncode}:\n{self.stderr}")
            try:
                status, words = self.admin("/readyz")
                if status == 200 or (not self._must_be_ready and "no listener is served" in words):
                    return
            except OSError:
                pass  # it does not listen yet
            time.sleep(0.02)
        self.stop()
        raise RuntimeError(f"the gateway was not ready after {WAIT_S:.0f} s:\n{self.stderr}")


def verb(*arguments: str) -> Result:
    """The status and the output of a verb of the command line, in this process: another one takes half a second."""
    return CliRunner().invoke(main, arguments)


def _samples(text: str) -> Iterator[tuple[str, _Series, float]]:
    """The type and the value of each series."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield family.type, (sample.name, frozenset(sample.labels.items())), sample.value


class SharedGateway:
    """One GatewayProcess for the tests of a module, which starts when the first of them needs it.

    Each test has it with manifests of its own, by a reload, and sees what was said, logged and counted since then. What
    a reload keeps (DNS answers, limits, caches, parents put aside) is there for the next test: give it other names.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._folder = folder
        self._arguments = arguments
        self._gateway: GatewayProcess | None = None

    @contextmanager
    def serving(self, objects: Iterable[manifests.Manifest]) -> Iterator[GatewayProcess]:
        """The gateway, with these manifests in service."""
        gateway = self.started()
        gateway.begin(objects)
        yield gateway

    def started(self) -> GatewayProcess:
        """The gateway, with whatever it serves."""
        if self._gateway is None:
            nothing = [manifests.gateway(manifests.forward_listener(free_port()))]
            self._gateway = GatewayProcess(self._folder, nothing, arguments=self._arguments)
            self._gateway.start()
        return self._gateway

    def stop(self) -> None:
        if self._gateway is not None:
            self._gateway.stop()
