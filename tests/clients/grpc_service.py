"""A service of gRPC whose messages are plain bytes, and the gateway in front of it: what tests of grpcio call.

Its methods are those that gRPC's interoperability tests need.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

from tests.support import manifests as m
from tests.support.manifests import Manifest
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S

SERVICE = "test.Service"
#: Its calls are retried by the gateway.
FLAKY = "test.Flaky"
#: Any size, in both directions.
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
#: A PING every second, calls or none: what gRPC calls keepalive, and some servers too many pings.
EAGER = [
    ("grpc.keepalive_time_ms", 1000), ("grpc.keepalive_timeout_ms", 5000), ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]  # fmt: skip
ECHO, ECHO_BIN = "x-echo-initial", "x-echo-trailing-bin"
NAME = "grpc.egress.test"


class Service:
    """`ended` has, of calls of Wait, whether their clients gave up."""

    def __init__(self, grpc: Any) -> None:
        self._grpc = grpc
        self.ended: list[str] = []
        self._changed = threading.Condition()
        self.left: list[float] = []
        self.flaky: list[str] = []  # messages of the calls to FLAKY

    def wait_for_end(self) -> str:
        """How the next call of Wait has ended."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.ended, WAIT_S)
            return self.ended.pop(0)

    def handler(self) -> Any:
        """What a server is given."""
        grpc = self._grpc
        kinds = {
            "Unary": grpc.unary_unary_rpc_method_handler(self._unary),
            "Input": grpc.stream_unary_rpc_method_handler(self._input),
            "Output": grpc.unary_stream_rpc_method_handler(self._output),
            "Duplex": grpc.stream_stream_rpc_method_handler(self._duplex),
            "Status": grpc.unary_unary_rpc_method_handler(self._status),
            "GiveUp": grpc.unary_stream_rpc_method_handler(self._give_up),
            "Wait": grpc.unary_stream_rpc_method_handler(self._wait),
        }
        return grpc.method_handlers_generic_handler(SERVICE, kinds)

    def flaky_handler(self) -> Any:
        """That of FLAKY, whose calls succeed when they come again. Their message is the status before."""
        kinds = {"Unary": self._grpc.unary_unary_rpc_method_handler(self._flaky)}
        return self._grpc.method_handlers_generic_handler(FLAKY, kinds)

    def _flaky(self, message: bytes, context: Any) -> bytes:
        code, _, pushback = message.decode().partition(" ")
        self.flaky.append(code)
        if self.flaky.count(code) % 2:
            if pushback:
                context.set_trailing_metadata((("grpc-retry-pushback-ms", pushback),))
            context.abort(getattr(self._grpc.StatusCode, code), "not now")
        return message

    def _unary(self, message: bytes, context: Any) -> bytes:
        metadata = dict(context.invocation_metadata())
        self.left.append(context.time_remaining() or 0.0)
        if ECHO in metadata:
            context.send_initial_metadata(((ECHO, metadata[ECHO]),))
        if ECHO_BIN in metadata:
            context.set_trailing_metadata(((ECHO_BIN, metadata[ECHO_BIN]),))
        return message

    def _input(self, messages: Iterator[bytes], context: Any) -> bytes:
        return b"%d" % sum(map(len, messages))

    def _output(self, message: bytes, context: Any) -> Iterator[bytes]:
        for size in message.split():
            yield bytes(int(size))

    def _duplex(self, messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
        yield from messages

    def _status(self, message: bytes, context: Any) -> bytes:
        code, _, text = message.decode().partition(" ")
        context.abort(getattr(self._grpc.StatusCode, code), text)
        return b""

    def _give_up(self, message: bytes, context: Any) -> Iterator[bytes]:
        yield message
        context.cancel()

    def _wait(self, message: bytes, context: Any) -> Iterator[bytes]:
        """One message if there is one in the request, then nothing until the client gives up."""
        over = threading.Event()
        has_stayed = False

        def note() -> None:  # not below: whoever gives up at once leaves a generator that nobody resumes
            over.set()
            with self._changed:
                self.ended.append("stayed" if has_stayed else "gave up")
                self._changed.notify_all()

        context.add_callback(note)
        if message:
            yield message
        has_stayed = not over.wait(WAIT_S)


class GrpcWorld:
    """A server of grpcio in plain text and in TLS, and the gateway. `plain` and `tls` lead to channels through it."""

    def __init__(self, folder: Path) -> None:
        grpc = self.grpc = importlib.import_module("grpc")
        self.pki = Pki()
        self.service = Service(grpc)
        plain, secure = self._server_ports = self.serve()
        self.dns = NameServer({NAME: ["127.0.0.1"]}).start()
        self.forward_port = free_port()
        self.down_port = free_port()
        self.ports = {"plain": free_port(), "tls": free_port()}
        self.objects = self._manifests(plain, secure)
        self.gateway = GatewayProcess(folder / "gateway", self.objects).start()
        trust = grpc.ssl_channel_credentials(self.pki.ca_pem.encode())
        proxy = ("grpc.http_proxy", f"http://127.0.0.1:{self.forward_port}")
        self._channels = {
            "tunnel": grpc.secure_channel(f"{NAME}:{secure}", trust, [*OPTIONS, proxy]),
            "plain": grpc.insecure_channel(f"127.0.0.1:{self.ports['plain']}", OPTIONS),
            "tls": grpc.secure_channel(
                f"127.0.0.1:{self.ports['tls']}",
                trust,
                [*OPTIONS, ("grpc.ssl_target_name_override", NAME), ("grpc.default_authority", NAME)],
            ),
        }

    def serve(self, plain: int = 0, secure: int = 0) -> tuple[int, int]:
        """Start a server on these ports; returns them."""
        grpc = self.grpc
        self.server = grpc.server(futures.ThreadPoolExecutor(16), options=[*OPTIONS, *EAGER])
        self.server.add_generic_rpc_handlers((self.service.handler(), self.service.flaky_handler()))
        plain = self.server.add_insecure_port(f"127.0.0.1:{plain}")
        leaf = self.pki.issue(NAME)
        pair = leaf.private_key_pem.bytes(), chain(leaf).encode()
        secure = self.server.add_secure_port(f"127.0.0.1:{secure}", grpc.ssl_server_credentials([pair]))
        self.server.start()
        return plain, secure

    def serve_again(self) -> None:
        """Another server, on the ports of the one that was stopped."""
        self.serve(*self._server_ports)

    def channel(self, way: str) -> Any:
        """Through the listener of this name, to the server in the same form; "tunnel": TLS by the forward proxy."""
        return self._channels[way]

    def eager_channel(self, *options: tuple[str, int]) -> Any:
        """One more channel in plain text, which pings."""
        return self.grpc.insecure_channel(f"127.0.0.1:{self.ports['plain']}", [*EAGER, *options])

    def close(self) -> None:
        """End everything."""
        for channel in self._channels.values():
            channel.close()
        self.gateway.stop()
        self.server.stop(0).wait(WAIT_S)
        self.dns.stop()

    def _manifests(self, plain: int, secure: int) -> list[Manifest]:
        """In plain text a Service of h2c, in TLS a Service with a BackendTLSPolicy."""
        leaf = self.pki.issue(NAME)
        pair = {"tls.crt": chain(leaf), "tls.key": leaf.private_key_pem.bytes().decode()}
        tls = {"mode": "Terminate", "certificateRefs": [{"name": "listener"}]}
        limit = {"requests": [{"per": "Route", "limit": 1, "window": "1h"}]}
        named = {"group": "", "kind": "Service", "name": "secure"}
        validation = {"hostname": NAME, "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]}
        policy = {"targetRefs": [named], "validation": validation}
        limited = {
            "targetRefs": [{"group": m.GATEWAY_API, "kind": "GRPCRoute", "name": "limited"}], "limits": limit,
        }  # fmt: skip
        retried = {
            "targetRefs": [{"group": m.GATEWAY_API, "kind": "GRPCRoute", "name": f"flaky-{way}"} for way in self.ports],
            "traffic": {"retries": {"attempts": 1, "retryOn": {"triggers": ["unavailable", "resource-exhausted"]}}},
        }
        return [
            m.gateway(
                m.http_listener(self.ports["plain"], "plain"),
                m.forward_listener(self.forward_port),
                {"name": "tls", "port": self.ports["tls"], "protocol": "HTTPS", "tls": tls},
            ),
            m.policy([NAME], dns=self.dns.address, cidrs=["127.0.0.0/8"]),
            m.secret("listener", pair, kind="kubernetes.io/tls"),
            m.config_map("ca", {"ca.crt": self.pki.ca_pem}),
            *_service("open", plain, appProtocol="kubernetes.io/h2c"),
            *_service("secure", secure),
            *_service("down", self.down_port, appProtocol="kubernetes.io/h2c"),
            m.manifest(f"{m.GATEWAY_API}/v1", "BackendTLSPolicy", "secure", "agents", spec=policy),
            _route("to-plain", "plain", "open", SERVICE),
            _route("to-tls", "tls", "secure", SERVICE),
            *[_route(f"down-{way}", way, "down", "test.Down") for way in self.ports],
            _route("limited", "plain", "open", "test.Limited"),
            m.manifest(f"{m.OURS}/v1alpha1", "EgressPolicy", "limited", "agents", spec=limited),
            _route("flaky-plain", "plain", "open", FLAKY),
            _route("flaky-tls", "tls", "secure", FLAKY),
            m.manifest(f"{m.OURS}/v1alpha1", "EgressPolicy", "retried", "agents", spec=retried),
        ]


def _service(name: str, port: int, **more: Any) -> list[Manifest]:
    ports = [{"name": "grpc", "port": 80, **more}]
    piece = m.manifest("discovery.k8s.io/v1", "EndpointSlice", name, "agents")
    piece["metadata"]["labels"] = {"kubernetes.io/service-name": name}
    piece |= {"addressType": "IPv4", "endpoints": [{"addresses": ["127.0.0.1"]}]}
    piece["ports"] = [{"name": "grpc", "port": port}]
    return [m.manifest("v1", "Service", name, "agents", spec={"ports": ports}), piece]


def _route(name: str, section: str, backend: str, service: str) -> Manifest:
    rule = {"matches": [{"method": {"service": service}}], "backendRefs": [{"name": backend, "port": 80}]}
    spec = {"parentRefs": [{"name": "gw", "sectionName": section}], "rules": [rule]}
    return m.manifest(f"{m.GATEWAY_API}/v1", "GRPCRoute", name, "agents", spec=spec)
