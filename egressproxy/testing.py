"""A gateway inside a test, in a thread of its own: `with egressproxy.testing.gateway(…) as gateway`, or `async with`.

It serves on a free port of 127.0.0.1 with the data plane of `egressproxy run`: one process, no admin address, no
signals, and no files but temporary ones. A thread of its own lets tests block (requests, subprocess) or await.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from ipaddress import ip_address, ip_network
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import yaml

from egressproxy.cli.client_settings import ClientSettings, Proxy
from egressproxy.cli.trust_bundle import TrustProblem, write_bundle
from egressproxy.config import manifests
from egressproxy.config.compile.status.status_warnings import all_warnings
from egressproxy.config.reading.load import read_all
from egressproxy.config.reading.problems import ConfigError
from egressproxy.config.resources.gateway import Gateway as GatewayManifest
from egressproxy.doors.catalog import Catalog
from egressproxy.doors.data_plane import GatewayServer
from egressproxy.filters.filter_trace import failures_shown
from egressproxy.gateway.leaf_certificates.minting import new_ca
from egressproxy.ir.gateway import ConfigIR, ListenerProtocol, every_listener
from egressproxy.model.unix_socket import is_unix
from egressproxy.net.listening import bind
from egressproxy.net.loop import new_loop
from egressproxy.processes.loader.compilation import compiled
from egressproxy.telemetry.access_log import AccessLog
from egressproxy.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from egressproxy.tapes import Report, Run

__all__ = ["ConfigError", "Gateway", "gateway"]

log = logging.getLogger("egressproxy.testing")

#: A manifest or the `spec` of an EgressPolicy, text of YAML, or the path of a file or folder.
Source = Mapping[str, Any] | str | Path

#: The Gateway of a configuration without one.
_GATEWAY: Final = "test/gateway"
_CA: Final = "testing-ca"
_CA_DAYS: Final = 7
#: The longest that the start may take, and that `log` waits for exchanges under way, in seconds.
_START_S: Final = 60.0
_ENDING_S: Final = 1.0
_POLL_S: Final = 0.005


class Gateway:
    """A gateway for `with` or `async with`, once.

    `sources` are manifests: a dict, text of YAML, or a path; a dict without `kind` is the `spec` of an EgressPolicy for
    the Gateway. Without a Gateway among them there is one, `test/gateway`, with the listener `forward` for a forward
    proxy. Any port of a Gateway is exchanged for a free one of 127.0.0.1.

    `allow`: names and addresses that clients may reach, as in `destinations.allow`. `intercept`: names whose TLS is
    opened, by a CA that is made for this gateway. `origins`: for a name the server of the test that stands for it, as
    `127.0.0.1:8080`, a URL or a port of 127.0.0.1, in plain HTTP; https to it has to be intercepted. `tapes`: a run of
    `egressproxy.tapes`, which is finished at the end. Without sources, `allow` and `origins` tapes allow everything.
    `folder`: where paths start, those of filters in dicts and texts, too.

    Raises ConfigError where the configuration would be refused, when it is entered.

    Attributes:
        port: of the first listener of HTTP, on 127.0.0.1.
        proxy_url: `http://127.0.0.1:PORT`.
        ca_file: a PEM file with the roots of the system and the CA of opened tunnels, for `verify=`.
        env: variables of the environment by which programs find the gateway, and trust its CA.
        ports: the port of each listener, by its port in the manifests.
        report: what the tapes say at the end; None before, and without tapes.
    """

    def __init__(
        self,
        *sources: Source,
        allow: Iterable[str] | str = (),
        intercept: Iterable[str] | str = (),
        origins: Mapping[str, str | int] | None = None,
        tapes: Run | None = None,
        folder: str | os.PathLike[str] = ".",
    ) -> None:
        self._sources = sources
        self._allow, self._intercept = ([each] if isinstance(each, str) else [*each] for each in (allow, intercept))
        self._origins = {host: _place(place) for host, place in (origins or {}).items()}
        self._tapes = tapes
        self._folder = Path(folder)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()
        self._server: GatewayServer | None = None  # while it is in service
        self._lines = _Lines()
        self._access_log = AccessLog(self._lines, max_denials_per_s=1_000_000)
        self.ports: dict[int, int] = {}
        self.port = 0
        self.proxy_url = ""
        self.ca_file = Path()
        self.env: dict[str, str] = {}
        self.report: Report | None = None

    # --- life ------------------------------------------------------------------------------------------------------
    def __enter__(self) -> Gateway:
        if self._thread is not None:
            raise RuntimeError("a gateway can be entered once: make another one")
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="egressproxy-testing", daemon=True)
        self._thread.start()
        try:
            ready.result(_START_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Gateway:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """End the gateway, at once, and remove its files; a second call does nothing."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._end.set)
        if self._thread is not None:
            self._thread.join(_START_S)
        if self._tapes is not None and self.report is None:
            self.report = self._tapes.finish()

    def _run(self, ready: Future[None]) -> None:
        """The thread. What filters raise is logged with its text, as in a test of a filter alone."""
        try:
            with (
                failures_shown(),
                TemporaryDirectory(prefix="egressproxy-testing-") as files,
                asyncio.Runner(loop_factory=new_loop) as runner,
            ):
                self.ca_file = Path(files) / "ca.pem"
                runner.run(self._serve(ready))
        except BaseException as error:
            if ready.done():
                log.exception("internal error: the gateway of this test has ended")
            else:
                ready.set_exception(error)

    async def _serve(self, ready: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        config = self._configuration()
        server = GatewayServer(Catalog(), Metrics("test"), self._access_log, bind=self._bind)
        try:
            await server.apply(config)
            self._tell(config)
            self._server = server
            ready.set_result(None)
            await self._end.wait()
        finally:
            self._server = None
            await server.drain(0.0)
            self._access_log.close()

    def _bind(self, address: str, port: int) -> socket.socket:
        if is_unix(address):
            return bind(address, port)
        bound = bind("udp://127.0.0.1" if address.startswith("udp://") else "127.0.0.1", 0)
        self.ports[port] = bound.getsockname()[1]
        return bound

    def _tell(self, config: ConfigIR) -> None:
        proxies = (ListenerProtocol.FORWARD_PROXY, ListenerProtocol.HTTP)
        numbers = [each.port for kind in proxies for each in config.listeners if each.protocol is kind]
        self.port = self.ports.get(numbers[0], 0) if numbers else 0
        self.proxy_url = f"http://127.0.0.1:{self.port}"
        cas = [each.chain_pem for listener in every_listener(config) for each in listener.policy.intercepts]
        trusted = "".join(dict.fromkeys(cas))
        try:
            write_bundle(self.ca_file, trusted)
        except TrustProblem:  # a system without roots, such as a small image
            self.ca_file.write_text(trusted, "utf-8")
        self.env = ClientSettings(Proxy("http", "127.0.0.1", self.port), bundle=self.ca_file).variables()

    # --- the configuration -----------------------------------------------------------------------------------------
    def _configuration(self) -> ConfigIR:
        """Raises ConfigError. The names of files in its messages are `<source 1>` and so on."""
        paths: list[Path] = []
        texts: list[tuple[str, str]] = []
        specs: list[tuple[str, Mapping[str, Any]]] = []
        for number, source in enumerate(self._sources, 1):
            file = str(self._folder / f"<source {number}>")
            if isinstance(source, Mapping) and "kind" not in source:
                specs.append((file, source))
            elif isinstance(source, Path) or (isinstance(source, str) and "\n" not in source and ": " not in source):
                paths.append(self._folder / source)
            else:
                texts.append((file, source if isinstance(source, str) else _yaml([source])))
        found = read_all(paths, texts=texts).of(GatewayManifest) if paths or texts else ()
        gateways = [f"{each.namespace}/{each.name}" for each in found] or [_GATEWAY]
        namespace, _, name = gateways[0].partition("/")
        for number, (file, spec) in enumerate(specs, 1):
            texts.append((file, _yaml([manifests.policy(f"{namespace}/testing-{number}", [name], **spec)])))
        objects = [*self._objects(namespace, name)]
        if not found:
            objects.append(manifests.forward_gateway(gateways[0]))
        texts.append((str(self._folder / "<testing>"), _yaml(objects)))
        if self._tapes is not None:
            paths.append(self._tapes.write(gateways))
        resources = read_all(paths, texts=texts)
        made = compiled(resources, ("127.0.0.1",))
        for warning in all_warnings(resources, made):
            log.warning("%s", warning)
        return made.spec

    def _objects(self, namespace: str, gateway_name: str) -> Iterator[manifests.Manifest]:
        """The manifests that stand for the arguments."""
        policy = _policy(self._allow)
        if self._tapes is not None and not (self._sources or self._allow or self._origins):
            policy["mode"] = "Open"
        if self._intercept:
            policy["intercept"] = {"hostnames": self._intercept, "caCertificateRef": {"name": _CA}}
            certificate, key = new_ca("egressproxy testing", time.time(), _CA_DAYS, path_length=0)
            pair = {"tls.crt": certificate, "tls.key": key.reveal().decode()}
            yield manifests.manifest("Secret", f"{namespace}/{_CA}", "v1", type="kubernetes.io/tls", stringData=pair)
        if policy:
            yield manifests.policy(f"{namespace}/testing", [gateway_name], **policy)
        for number, (host, place) in enumerate(self._origins.items(), 1):
            yield from manifests.origin(f"{namespace}/testing-{number}", [gateway_name], *place, host)

    # --- what it did -----------------------------------------------------------------------------------------------
    @property
    def log(self) -> list[dict[str, Any]]:
        """The exchanges that have ended so far, each as its line in the access log. Requests under way have a second to
        end; a tunnel ends when its client closes it.
        """
        server, loop = self._server, self._loop
        if server is not None and loop is not None:
            asyncio.run_coroutine_threadsafe(self._settled(server), loop).result(_START_S)
        return [*self._lines.lines]

    def wait_for(self, *, timeout_s: float = 5.0, **fields: object) -> dict[str, Any]:
        """The first line of the log with these fields. Raises AssertionError if none comes within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not (found := [line for line in self.log if fields.items() <= line.items()]):
            if time.monotonic() >= deadline:
                raise AssertionError(f"no exchange with {fields} among {self._lines.lines}")
            time.sleep(_POLL_S)
        return found[0]

    async def _settled(self, server: GatewayServer) -> None:
        deadline = time.monotonic() + _ENDING_S
        while any(True for _ in server.requests()) and time.monotonic() < deadline:  # noqa: ASYNC110 (nobody is told)
            await asyncio.sleep(_POLL_S)
        self._access_log.flush()


#: A gateway of a test: `with gateway(…) as running`.
gateway = Gateway


def _yaml(objects: Iterable[Mapping[str, Any]]) -> str:
    return yaml.safe_dump_all(map(dict, objects), sort_keys=False)


def _policy(allow: Iterable[str]) -> dict[str, Any]:
    """Of an EgressPolicy: names, and addresses or networks, which may be of this machine."""
    names, networks = [], []
    for each in allow:
        try:
            networks.append(str(ip_network(each, strict=False)))
        except ValueError:
            names.append(each)
    entries = [{"hostnames": names}] if names else []
    entries += [{"cidrs": networks}] if networks else []
    policy: dict[str, Any] = {"destinations": {"allow": entries}} if entries else {}
    return {**policy, "addresses": {"allow": [{"cidrs": networks}]}} if networks else policy


def _place(place: str | int) -> tuple[str, int]:
    """The address and port of a server of the test. Raises ValueError."""
    host, _, port = str(place).removeprefix("http://").rstrip("/").rpartition(":")
    try:
        return str(ip_address("127.0.0.1" if host in ("", "localhost") else host.strip("[]"))), int(port)
    except ValueError:
        raise ValueError(
            f"origins: {place!r} is no server of plain HTTP on an address: write 127.0.0.1:8080, or its port"
        ) from None


class _Lines:
    """What the access log writes."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.dropped = 0
        self.written = 0

    def put(self, chunk: bytes, lines: int) -> None:
        self.lines += map(json.loads, chunk.splitlines())
        self.written += lines

    def reopen(self) -> None: ...

    def close(self, timeout_s: float) -> None: ...
