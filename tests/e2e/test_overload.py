"""Overload, with the real process and real load: memory that runs out and returns, a flood beside a small client."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support import manifests as m
from tests.support.manifests import Manifest
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")


class Origin:
    """Answers each request once it is let."""

    def __init__(self) -> None:
        self.port = 0
        self.waiting = 0
        self.may_answer = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Origin:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MIB, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self.may_answer.set()
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.waiting += 1
                await self.may_answer.wait()
                self.waiting -= 1
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()


def forwards(port: int, origin: int) -> list[Manifest]:
    allowed = [{"cidrs": ["127.0.0.0/8"], "ports": [origin]}]
    policy = m.policy(destinations={"allow": allowed}, addresses={"allow": [{"cidrs": ["127.0.0.0/8"]}]})
    return [m.gateway(m.forward_listener(port)), policy]


async def ask(port: int, origin: int, source: str, fields: bytes = b"") -> str:
    """One request on a connection of its own: the status, or what else became of it."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    except OSError as error:
        return type(error).__name__
    try:
        place = b"127.0.0.1:%d" % origin
        writer.write(b"GET http://%b/ HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (place, place, fields))
        line = await reader.readline()
        return line.split()[1].decode() if line else "end"
    except OSError as error:
        return type(error).__name__
    finally:
        writer.close()


async def until(condition: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.02)


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


@pytest.mark.parametrize("gives_back", [True, False])
def test_a_burst_that_takes_all_memory_is_refused_and_the_gateway_serves_again(tmp_path: Path, gives_back: bool):
    """Also where malloc keeps what is free for good (`gives_back` false)."""
    limit = 144 * MIB
    keeps = tmp_path / "keeps.py"  # a program that calls the command line as a function keeps its process
    keeps.write_text(
        "import sys\nimport egressproxy.net.process as m\nfrom egressproxy.cli.main import main\n"
        "m._TRIM = None\nmain.main(sys.argv[2:])\n"
    )
    long = b"".join(b"X-%d: %s\r\n" % (number, os.urandom(500).hex().encode()) for number in range(60))

    async def burst() -> None:
        async with Origin() as origin:
            port = free_port()
            gateway = GatewayProcess(
                tmp_path / "gw", forwards(port, origin.port), arguments=["--max-memory", str(limit)],
                environment={} if gives_back else {"MALLOC_TRIM_THRESHOLD_": str(1 << 40)},
                within=[] if gives_back else [sys.executable, str(keeps)],
            )  # fmt: skip
            with gateway:
                most, answers = 0, Counter[str]()
                asked: list[asyncio.Task[str]] = []
                while answers["503"] < 200 or len(asked) < 2000:
                    source = f"127.0.{len(asked) % 8}.{1 + len(asked) % 200}"
                    task = asyncio.create_task(ask(port, origin.port, source, long))
                    task.add_done_callback(lambda done: answers.update((done.result(),)))
                    asked.append(task)
                    if len(asked) % 50 == 0:
                        most = max(most, resident(gateway.pid))
                        await asyncio.sleep(0.05)
                    if len(asked) > 6000:
                        break
                assert "overload state" in gateway.stderr
                status, _ = await asyncio.to_thread(gateway.admin, "/readyz")
                assert status == 200
                origin.may_answer.set()
                await asyncio.wait_for(asyncio.gather(*asked), WAIT_S)
                assert answers["200"] > 200
                assert most < limit * 1.1
                assert answers.keys() <= {"200", "503", "end", "ConnectionResetError"}

                async def serves() -> bool:
                    return [await ask(port, origin.port, "127.0.0.1") for _ in range(10)] == ["200"] * 10

                await until(serves)
                await asyncio.to_thread(gateway.wait_for_diagnostics, "overload state normal")
                if gives_back:
                    await until(lambda: resident(gateway.pid) < 0.85 * limit)
                else:
                    assert resident(gateway.pid) > 0.85 * limit
            assert gateway.stop() == 0

    asyncio.run(burst())


def test_a_flood_of_one_client_leaves_another_nearly_untouched(tmp_path: Path):
    """A with 1,000 at once, B with 5: the limit is 100."""

    async def flood() -> None:
        async with Origin() as origin:
            port = free_port()
            arguments = ["--max-requests", "100", "--max-connections", "0"]
            gateway = GatewayProcess(tmp_path / "gw", forwards(port, origin.port), arguments=arguments)
            with gateway:
                of_a, of_b = Counter[str](), Counter[str]()
                is_over = False

                async def keep_asking(source: str, answers: Counter[str], *, pause_s: float, times: int) -> None:
                    for _ in range(times):
                        if is_over:
                            return
                        answers[await ask(port, origin.port, source)] += 1
                        await asyncio.sleep(pause_s)

                a = [asyncio.create_task(keep_asking("127.0.0.66", of_a, pause_s=1.0, times=1000)) for _ in range(1000)]
                await until(
                    lambda: of_a["503"] > 500 and origin.waiting > 50
                )  # the limit is reached, and A has its share
                assert origin.waiting < 80
                b = [asyncio.create_task(keep_asking("127.0.9.1", of_b, pause_s=0.0, times=60)) for _ in range(5)]
                await until(lambda: origin.waiting > 70)

                async def answer_some() -> None:
                    while not is_over:
                        origin.may_answer.set()
                        await asyncio.sleep(0)
                        origin.may_answer.clear()
                        await asyncio.sleep(0.05)

                answering = asyncio.create_task(answer_some())
                await asyncio.wait_for(asyncio.gather(*b), WAIT_S)
                is_over = True
                await answering
                origin.may_answer.set()
                await asyncio.wait_for(asyncio.gather(*a), WAIT_S)
                assert of_b["200"] >= 297, (of_a, of_b)
                assert of_a["503"] > 500
                assert gateway.metric("egress_requests_shed_total", reason="tenant", priority="normal") > 500
                assert gateway.metric("egress_overload_state") == 0

    asyncio.run(flood())


def test_each_worker_has_the_limit_for_itself(tmp_path: Path):
    async def fill() -> None:
        async with Origin() as origin:
            port = free_port()
            arguments = ["--workers", "2", "--max-requests", "1", "--max-memory", "1Gi"]
            gateway = GatewayProcess(tmp_path / "gw", forwards(port, origin.port), arguments=arguments)
            with gateway:
                answers = Counter[str]()

                async def keep_asking(source: str) -> None:
                    while answers["200"] < 2:
                        answers[await ask(port, origin.port, source)] += 1
                        await asyncio.sleep(0.01)

                asked = [asyncio.create_task(keep_asking(f"127.0.0.{number}")) for number in range(1, 17)]
                await until(lambda: origin.waiting == 2)
                before = answers["503"]
                await until(lambda: answers["503"] > before + 100)
                assert origin.waiting == 2
                origin.may_answer.set()
                await asyncio.wait_for(asyncio.gather(*asked), WAIT_S)
                text = await asyncio.to_thread(gateway.metric, "egress_memory_limit_bytes")
                assert text == 2 << 30

    asyncio.run(fill())


def test_the_admin_address_answers_while_clients_use_all_descriptors(tmp_path: Path):
    few = ("sh", "-c", 'ulimit -n 200; exec "$@"', "-")

    async def fill() -> None:
        async with Origin() as origin:
            port = free_port()
            with GatewayProcess(tmp_path / "gw", forwards(port, origin.port), within=few) as gateway:
                assert "may have 200 files open, and so 68 connections" in gateway.stderr
                opened = []
                for number in range(300):
                    local = (f"127.0.{number % 5}.{1 + number % 200}", 0)
                    opened.append(await asyncio.open_connection("127.0.0.1", port, local_addr=local))

                async def are_refused() -> bool:
                    status, _ = await asyncio.to_thread(gateway.admin, "/readyz")
                    assert status == 200
                    count = await asyncio.to_thread(gateway.metric, "egress_connections_rejected_total")
                    return count >= 300 - 68

                await until(are_refused)
                for _, writer in opened:
                    writer.close()
                origin.may_answer.set()

                async def serves() -> bool:
                    return await ask(port, origin.port, "127.0.0.1") == "200"

                await until(serves)

    asyncio.run(fill())
