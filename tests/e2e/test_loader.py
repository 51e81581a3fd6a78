"""The process that loads, of a real gateway: it stays for the next change, and what becomes of it harms nobody."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import wait_until
from tests.support.writing import Client

MAPS = "/api/v1/namespaces/agents/configmaps"
GATEWAYS = "/apis/gateway.networking.k8s.io/v1/namespaces/agents/gateways"


def children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, path.read_text().split())
    return found


def loaders(gateway: GatewayProcess) -> list[int]:
    return [pid for pid in children(gateway.pid) if Path(f"/proc/{pid}/comm").read_text().strip() == "egress-loader"]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def reload(gateway: GatewayProcess, port: int, *hostnames: str) -> None:
    before = gateway.metric("egress_config_generation")
    gateway.replace([m.gateway(m.forward_listener(port)), m.policy(hostnames)])
    gateway.wait_for_metric("egress_config_generation", before + 1)


def test_one_process_serves_change_after_change_and_ends_with_the_gateway(tmp_path: Path):
    port = free_port()
    objects = [m.gateway(m.forward_listener(port)), m.policy(["a.test"])]
    with GatewayProcess(tmp_path / "gateway", objects, arguments=["--workers", "2"]) as gateway:
        wait_until(lambda: loaders(gateway))
        (loader,) = loaders(gateway)
        reload(gateway, port, "b.test")
        reload(gateway, port, "c.test")
        assert loaders(gateway) == [loader]
        os.kill(loader, signal.SIGTERM)  # as a system that is short of memory, or an administrator
        reload(gateway, port, "d.test")
        wait_until(lambda: loaders(gateway))
        (loader,) = loaders(gateway)
        os.killpg(loader, signal.SIGINT)
        os.kill(gateway.pid, signal.SIGKILL)
        wait_until(lambda: not is_running(loader))


def test_a_change_that_is_never_read_harms_nobody_and_ends_with_the_gateway(tmp_path: Path):
    """A file behind a name that a folder does not have is a pipe that nobody writes to."""
    port = free_port()
    objects = [m.gateway(m.forward_listener(port)), m.policy(["a.test"])]
    pipe = tmp_path / "pipe.yaml"
    pipe.write_text("{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}")
    with GatewayProcess(tmp_path / "gateway", objects, arguments=["--config", str(pipe)]) as gateway:
        pipe.unlink()
        os.mkfifo(pipe)
        wait_until(lambda: [copy for loader in loaders(gateway) for copy in children(loader)])
        processes = [*loaders(gateway), *(copy for loader in loaders(gateway) for copy in children(loader))]
        assert gateway.admin("/readyz")[0] == 200
        assert gateway.stop() == 0
        wait_until(lambda: not any(map(is_running, processes)))


def test_of_many_writes_at_once_each_has_its_answer(tmp_path: Path):
    folder = tmp_path / "state"
    arguments = ["--state-dir", str(folder), "--api-writes"]
    with (
        GatewayProcess(
            tmp_path / "gateway", [m.config_map("of-a-file", {})], arguments=arguments, must_be_ready=False
        ) as gateway,
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):

        def send(number: int) -> int:
            match number % 10:
                case 3:  # what no manifest may say
                    body = m.gateway(m.forward_listener(99999), name=f"g{number}")
                case 5:  # what cannot be put into service
                    body = m.gateway(m.forward_listener(taken.getsockname()[1]), name=f"g{number}")
                case 7:  # one name for several
                    body = m.gateway(m.forward_listener(free_port()), name="same")
                case _:
                    body = m.config_map(f"c{number}", {"a": "b"})
            return Client(gateway).send("POST", GATEWAYS if body["kind"] == "Gateway" else MAPS, body)[0]

        with ThreadPoolExecutor(40) as pool:
            codes = list(pool.map(send, range(40)))
        rest = [code for number, code in enumerate(codes) if number % 10 not in (3, 5, 7)]
        assert [codes[number] for number in (3, 13, 23, 33)] == [422] * 4
        assert [codes[number] for number in (5, 15, 25, 35)] == [422] * 4
        assert sorted(codes[number] for number in (7, 17, 27, 37)) == [201, 409, 409, 409]
        assert rest == [201] * 28
        assert len([name for name in os.listdir(folder) if not name.startswith(".")]) == 29
        assert Client(gateway).send("DELETE", f"{MAPS}/c0")[0] == 200
