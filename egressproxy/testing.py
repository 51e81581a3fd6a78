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
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from ipaddress import ip_address, ip_network
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import yaml

from egressproxy.cli.client_settings import ClientSettings, Proxy
from egressproxy.cli.trust_bundle import TrustProblem, write_bundle
from egressproxy.config.compile.status.status_warnings import all_warnings
from egressproxy.config.reading.load import ResourceSet, read_all
from egressproxy.config.reading.problems import ConfigError
from egressproxy.config.resources.gateway import Gateway as GatewayManifest
from egressproxy.doors.catalog import Catalog
from egressproxy.doors.data_plane import GatewayServer
from egressproxy.filters.filter_trace import failures_shown
from egressproxy.gateway.leaf_certificates.minting import new_ca
from egressproxy.ir.gateway import ListenerProtocol, every_listener
from egressproxy.model.unix_socket import is_unix
from egressproxy.net.listening import bind
from egressproxy.net.loop import new_loop
from egressproxy.processes.loader.compilation import compiled
from egressproxy.telemetry.access_log import AccessLog
from egressproxy.telemetry.metrics import Metrics

__all__ = ["ConfigError", "Gateway", "gateway"]

log = logging.getLogger("egressproxy.testing")

#: A manifest or the `spec` of an EgressPolicy, text of YAML, or the path of a file or folder.
Source = Mapping[str, Any] | str | Path

#: The Gateway of a configuration without one.
_GATEWAY: Final = ("test", "gateway")
_CA: Final = "testing-ca"
_CA_DAYS: Final = 7
#: The longest that the start may take, and that `log` waits for exchanges under way, in seconds.
_START_S: Final = 60.0
_ENDING_S: Final = 1.0
_POLL_S: Final = 0.005
_T = TypeVar("_T")


class TapeReport(Protocol):
    """The interface of `egressproxy.tapes.Report`."""

    missing: list[str]
    unplayed: list[str]

    def lines(self) -> list[str]: ...


class Tapes(Protocol):
    """The interface of `egressproxy.tapes.Run`."""

    @property
    def ca_pem(self) -> str: ...

    def write(self, gateways: Sequence[str]) -> Path: ...

    def finish(self) -> TapeReport: ...


def gateway(
    *sources: Source,
    allow: Iterable[str] | str = (),
    intercept: Iterable[str] | str = (),
    origins: Mapping[str, str | int] | None = None,
    tapes: Tapes | None = None,
    folder: str | os.PathLike[str] = ".",
) -> Gateway:
    """A gateway for `with` or `async with`.

    `sources` are manifests: a dict, text of YAML, or a path; a dict without `kind` is the `spec` of an EgressPolicy for
    the Gateway. Without a Gateway among them there is one, `test/gateway`, with the listener `forward` for a forward
    proxy. Any port of a Gateway is exchanged for a free one of 127.0.0.1.

    `allow`: names and addresses that clients may reach, as in `destinations.allow`. `intercept`: names whose TLS is
    opened, by a CA that is made for this gateway. `origins`: for a name the server of the test that stands for it, as
    `127.0.0.1:8080`, a URL or a port of 127.0.0.1, in plain HTTP; https to it has to be intercepted. `tapes`: a run of
    `egressproxy.tapes`, which is finished at the end. Without sources, `allow` and `origins` tapes allow everything.
    `folder`: where paths of filters in dicts and texts start.

    Raises ConfigError where the configuration would be refused, when it is entered.
    """
    for source in sources:
        if not isinstance(source, Mapping | str | Path):
            raise TypeError(f"a source is a dict, text of YAML or a path, and no {type(source).__name__}")
    names, opened = ((each,) if isinstance(each, str) else tuple(each) for each in (allow, intercept))
    return Gateway(sources, names, opened, origins or {}, tapes, Path(folder))


class Gateway:
    """The running gateway: see `gateway`.

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
        sources: Sequence[Source],
        allow: Sequence[str],
        intercept: Sequence[str],
        origins: Mapping[str, str | int],
        tapes: Tapes | None,
        folder: Path,
    ) -> None:
        self._sources = sources
        self._allow = allow
        self._intercept = intercept
        self._origins = origins
        self._tapes = tapes
        self._folder = folder
        self._files: TemporaryDirectory[str] | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._server: GatewayServer | None = None
        self._lines = _Lines()
        self._access_log = AccessLog(self._lines, max_denials_per_s=1_000_000)
        self.ports: dict[int, int] = {}
        self._main_port = 0
        self.port = 0
        self.proxy_url = ""
        self.ca_file = Path()
        self.env: dict[str, str] = {}
        self.report: TapeReport | None = None

    # --- life ------------------------------------------------------------------------------------------------------
    def __enter__(self) -> Gateway:
        if self._thread is not None:
            raise RuntimeError("a gateway can be entered once: make another one")
        self._files = TemporaryDirectory(prefix="egressproxy-testing-")
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="egressproxy-testing", daemon=True)
        self._thread.start()
        try:
            ready.result(_START_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Gateway:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """End the gateway, at once, and remove its files; a second call does nothing."""
        loop, end, thread = self._loop, self._end, self._thread
        if loop is not None and end is not None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(end.set)
        if thread is not None:
            thread.join(_START_S)
        if self._tapes is not None and self.report is None:
            self.report = self._tapes.finish()
        if self._files is not None:
            self._files.cleanup()

    def _run(self, ready: Future[None]) -> None:
        """The thread. What filters raise is logged with its text, as in a test of a filter alone."""
        try:
            with failures_shown(), asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(self._serve(ready))
        except BaseException as error:
            if ready.done():
                log.exception("internal error: the gateway of this test has ended")
            else:
                ready.set_exception(error)

    async def _serve(self, ready: Future[None]) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        config, trusted = self._configuration()
        self._server = server = GatewayServer(Catalog(), Metrics("test"), self._access_log, bind=self._bind)
        try:
            await server.apply(config)
            self._tell(trusted)
            ready.set_result(None)
            await self._end.wait()
        finally:
            await server.drain(0.0)
            self._access_log.close()

    def _bind(self, address: str, port: int) -> socket.socket:
        if is_unix(address):
            return bind(address, port)
        bound = bind("udp://127.0.0.1" if address.startswith("udp://") else "127.0.0.1", 0)
        self.ports[port] = bound.getsockname()[1]
        return bound

    def _tell(self, trusted: str) -> None:
        assert self._files is not None
        self.port = self.ports.get(self._main_port, 0)
        self.proxy_url = f"http://127.0.0.1:{self.port}"
        self.ca_file = Path(self._files.name) / "ca.pem"
        try:
            write_bundle(self.ca_file, trusted)
        except TrustProblem:  # a system without roots, such as a small image
            self.ca_file.write_text(trusted, "utf-8")
        settings = ClientSettings(Proxy("http", "127.0.0.1", self.port), bundle=self.ca_file)
        self.env = settings.variables()

    # --- the configuration -----------------------------------------------------------------------------------------
    def _configuration(self) -> tuple[Any, str]:
        """The configuration, and the CAs of opened tunnels. Raises ConfigError."""
        paths, texts = self._given()
        found = read_all(paths, texts=texts) if paths or texts else ResourceSet()
        gateways = [f"{each.namespace}/{each.name}" for each in found.of(GatewayManifest)] or ["/".join(_GATEWAY)]
        texts += self._made(gateways[0], is_ours=not found.of(GatewayManifest))
        if self._tapes is not None:
            paths.append(self._tapes.write(gateways))
        resources = read_all(paths, texts=texts)
        made = compiled(resources, ("127.0.0.1",))
        for warning in all_warnings(resources, made):
            log.warning("%s", warning)
        proxies = (ListenerProtocol.FORWARD_PROXY, ListenerProtocol.HTTP)
        numbers = [each.port for kind in proxies for each in made.spec.listeners if each.protocol is kind]
        self._main_port = numbers[0] if numbers else 0
        intercepts = [each.chain_pem for listener in every_listener(made.spec) for each in listener.policy.intercepts]
        return made.spec, "".join(dict.fromkeys(intercepts))

    def _given(self) -> tuple[list[Path], list[tuple[str, str]]]:
        """The paths and the texts among the sources; specs of policies follow in `_made`."""
        paths: list[Path] = []
        texts: list[tuple[str, str]] = []
        for number, source in enumerate(self._sources, 1):
            if isinstance(source, Mapping):
                if "kind" in source:
                    texts.append((self._file(number), _yaml([source])))
            elif isinstance(source, Path) or ("\n" not in source and ": " not in source):
                paths.append(Path(source))
            else:
                texts.append((self._file(number), source))
        return paths, texts

    def _made(self, gateway_name: str, *, is_ours: bool) -> Iterator[tuple[str, str]]:
        """The manifests that stand for specs of policies and the other arguments, for this Gateway (namespace/name)."""
        namespace, _, name = gateway_name.partition("/")
        objects: list[dict[str, Any]] = []

        def made(api: str, kind: str, called: str, spec: Mapping[str, Any]) -> dict[str, Any]:
            meta = {"name": called, "namespace": namespace}
            return {"apiVersion": api, "kind": kind, "metadata": meta, "spec": spec}

        if is_ours:
            listener = {"name": "forward", "port": 3128, "protocol": "egressproxy.io/forward-proxy"}
            objects.append(made(_API, "Gateway", name, {"gatewayClassName": "egressproxy", "listeners": [listener]}))
        target = {"targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": name}]}
        for number, source in enumerate(self._sources, 1):
            if isinstance(source, Mapping) and "kind" not in source:
                policy = made(_OURS, "EgressPolicy", f"testing-{number}", {**target, **source})
                yield self._file(number), _yaml([policy])
        policy = _policy(self._allow)
        if self._tapes is not None and not (self._sources or self._allow or self._origins):
            policy["mode"] = "Open"
        if self._intercept:
            policy["intercept"] = {"hostnames": list(self._intercept), "caCertificateRef": {"name": _CA}}
            certificate, key = new_ca("egressproxy testing", time.time(), _CA_DAYS, path_length=0)
            data = {"tls.crt": certificate, "tls.key": key.reveal().decode()}
            meta = {"name": _CA, "namespace": namespace}
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "kubernetes.io/tls"}
            objects.append({**secret, "stringData": data})
        if policy:
            objects.append(made(_OURS, "EgressPolicy", "testing", {**target, **policy}))
        for number, (host, place) in enumerate(self._origins.items(), 1):
            address, port = _place(place)
            ports = [{"number": port, "protocol": "HTTP11", "tls": {"mode": "None"}}]
            destination = {"type": "Ip", "ip": {"address": address}, "ports": ports}
            ref = {"group": "egressproxy.io", "kind": "Backend", "name": f"testing-{number}"}
            route = {"parentRefs": [{"name": name}], "hostnames": [host], "rules": [{"backendRefs": [ref]}]}
            objects.append(made(_OURS, "Backend", ref["name"], {"destination": destination}))
            objects.append(made(_API, "HTTPRoute", ref["name"], route))
        if objects:
            yield str(self._folder / "<testing>"), _yaml(objects)

    def _file(self, number: int) -> str:
        """The name of a source in messages; its folder is where paths of filters start."""
        return str(self._folder / f"<source {number}>")

    # --- what it did -----------------------------------------------------------------------------------------------
    @property
    def log(self) -> list[dict[str, Any]]:
        """The exchanges that have ended so far, each as its line in the access log. Requests under way have a second to
        end; a tunnel ends when its client closes it.
        """
        loop, server = self._loop, self._server
        if server is not None and loop is not None and not loop.is_closed():
            with suppress(RuntimeError, TimeoutError):  # the loop is ending
                _called(loop, self._settled(server))
        return [*self._lines.lines]

    def wait_for(self, *, timeout_s: float = 5.0, **fields: object) -> dict[str, Any]:
        """The first line of the log with these fields. Raises AssertionError if none comes within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            lines = self.log
            for line in lines:
                if fields.items() <= line.items():
                    return line
            if time.monotonic() >= deadline:
                raise AssertionError(f"no exchange with {fields} among {lines}")
            time.sleep(_POLL_S)

    async def _settled(self, server: GatewayServer) -> None:
        deadline = time.monotonic() + _ENDING_S
        while any(True for _ in server.requests()) and time.monotonic() < deadline:  # noqa: ASYNC110 (nobody is told)
            await asyncio.sleep(_POLL_S)
        self._access_log.flush()

    def __repr__(self) -> str:
        return f"Gateway({self.proxy_url or 'not entered'})"


_API: Final = "gateway.networking.k8s.io/v1"
_OURS: Final = "egressproxy.io/v1alpha1"


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
    if isinstance(place, int):
        return "127.0.0.1", place
    parts = urlsplit(place if "://" in place else f"http://{place}")
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname or ""
    try:
        if parts.scheme == "http" and parts.port is not None:
            return str(ip_address(host)), parts.port
    except ValueError:
        pass
    raise ValueError(f"origins: {place!r} is no server of plain HTTP on an address: write 127.0.0.1:8080, or its port")


def _yaml(objects: Iterable[Mapping[str, Any]]) -> str:
    return yaml.safe_dump_all([_plain(each) for each in objects], sort_keys=False)


def _plain(value: object) -> object:
    """Values that YAML can say: other mappings are dicts, sequences are lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, str | bytes | bytearray):
        return value
    return [_plain(each) for each in value] if isinstance(value, Iterable) else value


def _called(loop: asyncio.AbstractEventLoop, made: Coroutine[Any, Any, _T]) -> _T:
    """The result of this in the thread of the gateway."""
    try:
        return asyncio.run_coroutine_threadsafe(made, loop).result(2 * _ENDING_S)
    except RuntimeError:
        made.close()
        raise


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
