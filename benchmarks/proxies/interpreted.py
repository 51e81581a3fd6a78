"""Proxies that are written in Python. They are slow, and compared with only where they are named."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.processes import StartError
from benchmarks.proxies.base import Proxy
from benchmarks.proxies.installed import install
from benchmarks.world import REPOSITORY, World

PEERS = REPOSITORY / "benchmarks" / "peers"
FORWARD = ("W1", "W1u", "W1s")
REVERSE = ("W2", "W5")
TUNNELS = ("W3", "W4", "W6")


class MitmProxy(Proxy):
    name = "mitmproxy"
    opens_tunnels = True
    listeners = ("FORWARD", "REVERSE", "EVENTS_REVERSE")
    unable: Mapping[str, str] = dict.fromkeys(("W7", "W8"), "it takes HTTP/2 inside TLS only")
    caveats: Mapping[str, str] = dict.fromkeys(
        (*FORWARD, *REVERSE, *TUNNELS, "W9"), "no limits on rate or connections, no metrics"
    )

    def prepare(self, world: World, folder: Path) -> list[str]:
        self.version = "11.0.2"
        self.opened_ca = folder / "mitmproxy-ca-cert.pem"
        return [
            *_program("mitmproxy", self.version, "mitmdump"), "-q", "-s", str(PEERS / "mitmproxy_addon.py"),
            "--mode", f"regular@127.0.0.1:{self.ports['FORWARD']}",
            "--mode", f"reverse:https://upstream.bench.example:{world.tls_port}@127.0.0.1:{self.ports['REVERSE']}",
            "--mode",
            f"reverse:https://upstream.bench.example:{world.events_port}@127.0.0.1:{self.ports['EVENTS_REVERSE']}",
            "--set", f"confdir={folder}", "--set", f"ssl_verify_upstream_trusted_ca={world.folder / 'ca.crt'}",
            "--set", "http2=false", "--set", "body_size_limit=1m",
            "--set", rf"ignore_hosts=.*:{world.plain_port}",
        ]  # fmt: skip

    def environment(self, world: World) -> Mapping[str, str]:
        return {"BENCH_NAMES": ",".join(self.names), "BENCH_TOKEN": world.token}

    def reverse_port(self, host: str) -> int:
        return self.ports["EVENTS_REVERSE" if host.startswith("events.") else "REVERSE"]


class ProxyPy(Proxy):
    name = "proxy.py"
    listeners = ("FORWARD",)
    unable: Mapping[str, str] = dict.fromkeys((*REVERSE, "W7", "W8"), "its reverse proxy cannot edit requests")
    caveats: Mapping[str, str] = dict.fromkeys((*FORWARD, *TUNNELS), "no limits, no metrics")

    def prepare(self, world: World, folder: Path) -> list[str]:
        self.version = "2.4.10"
        return [
            *_program("proxy.py", self.version, "proxy"), "--hostname", "127.0.0.1",
            "--port", str(self.ports["FORWARD"]), "--num-workers", "1", "--num-acceptors", "1", "--log-level", "ERROR",
            "--timeout", "60", "--backlog", "1024", "--data-dir", str(folder),
            "--plugins", "proxy_py_plugin.BenchPlugin",
        ]  # fmt: skip

    def environment(self, world: World) -> Mapping[str, str]:
        return {"BENCH_NAMES": ",".join(self.names), "PYTHONPATH": str(PEERS)}


class AioHttp(Proxy):
    """The proxy that one writes in an afternoon."""

    name = "aiohttp"
    listeners = ("FORWARD", "REVERSE")
    unable: Mapping[str, str] = {
        **dict.fromkeys(TUNNELS, "aiohttp's server cannot do CONNECT"),
        **dict.fromkeys(("W7", "W8"), "aiohttp's server speaks HTTP/1"),
    }  # fmt: skip
    caveats: Mapping[str, str] = dict.fromkeys((*FORWARD, *REVERSE), "no limit on connections")

    def prepare(self, world: World, folder: Path) -> list[str]:
        import aiohttp

        self.version = aiohttp.__version__
        return [
            sys.executable, str(PEERS / "aiohttp_proxy.py"), "--forward", str(self.ports["FORWARD"]),
            "--reverse", str(self.ports["REVERSE"]), "--upstream", str(world.tls_port),
            "--events", str(world.events_port), "--ca", str(world.folder / "ca.crt"),
            "--log", str(folder / "access.log"),
        ]  # fmt: skip

    def environment(self, world: World) -> Mapping[str, str]:
        return {"BENCH_NAMES": ",".join(self.names), "BENCH_TOKEN": world.token}


class LiteLlm(Proxy):
    name = "litellm"
    level = "INFO"  # a line for each request
    listeners = ("REVERSE",)
    edits = False
    unable: Mapping[str, str] = {
        **dict.fromkeys((*FORWARD, *TUNNELS, "S", "S2"), "a gateway of applications, no proxy"),
        "W2": "see L",
        "W5": "see L",
        **dict.fromkeys(("W7", "W8"), "see L"),
    }
    caveats: Mapping[str, str] = {
        "Lp": "a pass-through endpoint: one route, a credential; no edits, no limits",
        "L": "one model; redaction of requests alone",
        "M": "one route",
    }

    def prepare(self, world: World, folder: Path) -> list[str]:
        self.version = "1.106.2"
        config = self.configure(world.render("litellm.yaml", folder, self.ports))
        return [
            *_program("litellm", self.version, "litellm", "[proxy]", "prometheus-client"), "--config", str(config),
            "--host", "127.0.0.1", "--port", str(self.ports["REVERSE"]), "--num_workers", "1",
        ]  # fmt: skip

    def environment(self, world: World) -> Mapping[str, str]:
        return {
            "SSL_CERT_FILE": str(world.folder / "ca.crt"),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_LOG": self.level,
        }

    def configure(self, config: Path) -> Path:
        """The configuration to run with, of the one that every variant has."""
        return config


class LiteLlmBare(LiteLlm):
    """LiteLLM at its cheapest: without what the others do for each request beside serving it."""

    name = "litellm-bare"
    level = "ERROR"
    caveats: Mapping[str, str] = {each: f"{said}; no metrics, no log" for each, said in LiteLlm.caveats.items()}

    def configure(self, config: Path) -> Path:
        """Without callbacks."""
        config.write_text(config.read_text().replace("callbacks: [prometheus]", "callbacks: []"))
        return config


def _program(package: str, version: str, script: str, extra: str = "", *others: str) -> list[str]:
    """Its command, run by the interpreter of its virtual environment. Raises StartError."""
    folder = install(package, version, extra, *others)
    path = folder / "bin" / script
    if not path.exists():
        raise StartError(f"{package} {version} has no program {script}")
    return [str(folder / "bin" / "python"), str(path)]
