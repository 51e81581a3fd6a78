"""The measurements: each brings one kind of trouble to a gateway of its own, and gives results with their goals."""

from __future__ import annotations

import asyncio
import random
import resource
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import StartError
from benchmarks.soak.clients import Load, get
from benchmarks.soak.origins import KIB, TINY, NameServer, Origins
from benchmarks.soak.subject import Lag, Subject
from benchmarks.trouble.crowd import Crowd, Reader, Sender, step_all
from benchmarks.trouble.result import Result

PLAIN, SECURE = "plain.soak.example", "tls.soak.example"
LARGE = 1 << 30
#: Of a request, which the policy limits to as much.
BODY = 32 << 20
LUA = Path(__file__).parents[1] / "load" / "requests.lua"


@dataclass(frozen=True)
class Settings:
    """`scale` shrinks counts and times, for a first look: goals are meant for 1."""

    scale: float
    workers: int
    core: int | None

    def count(self, number: int) -> int:
        return max(1, round(number * self.scale))


@dataclass(frozen=True)
class Stage:
    """A running gateway, and its origins."""

    subject: Subject
    origins: Origins

    async def resident_kib(self) -> int:
        """When it has come to rest."""
        await asyncio.sleep(1.5)
        return self.subject.resident_kib()

    async def warm_up(self) -> None:
        """What the first hundred connections of each kind make is not counted for later ones."""
        crowd = Crowd(self.subject.forward)
        await crowd.open(200, lambda _: [self.absolute()])
        crowd.close()
        await crowd.open(64, lambda _: [self.connect()])
        crowd.close()
        await self.until_empty()

    async def until_empty(self) -> None:
        """No client is connected."""
        async with asyncio.timeout(30):
            while (await self.subject.sample()).downstream:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    def absolute(self, host: str = PLAIN) -> tuple[bytes, bytes]:
        return get(f"{host}:{self.origins.plain}", "/ok", scheme="http://"), KIB

    def connect(self) -> tuple[bytes, bytes]:
        place = f"{PLAIN}:{self.origins.plain}"
        return f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode(), b"\r\n\r\n"


@asynccontextmanager
async def stage(settings: Settings, *, descriptors: int = 0) -> AsyncIterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="egressproxy-trouble-") as name:
        core = None if settings.workers > 1 else settings.core
        subject = Subject(Path(name), core, workers=settings.workers, descriptors=descriptors, patience_s=120)
        names, origins = NameServer(), Origins(subject.server_context())
        await names.start()
        await origins.start()
        try:
            await subject.start(plain=origins.plain, tls=origins.tls, dns=names.port)
            yield Stage(subject, origins)
        finally:
            await asyncio.to_thread(subject.close)
            origins.close()
            names.close()


# --- memory ------------------------------------------------------------------------------------------------------
async def idle_clients(settings: Settings) -> list[Result]:
    """Kept-alive connections between two requests, and some that have never said a word."""
    results = []
    for name, goal, asks in (("idle client, after a request", 20.0, True), ("idle client, silent", 20.0, False)):
        async with stage(settings) as here:
            await here.warm_up()
            before = await here.resident_kib()
            crowd = Crowd(here.subject.forward)
            # By itself a gateway gives clients half of its descriptors.
            room = resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 2 // 5
            count = min(settings.count(10_000 if asks else 5_000), room)

            def requests(_: int, asks: bool = asks, here: Stage = here) -> Iterable[tuple[bytes, bytes]]:
                return [here.absolute()] if asks else []

            await crowd.open(count, requests)
            after = await here.resident_kib()
            crowd.close()
            await here.until_empty()
            notes = {
                "connections": count,
                "rss_mib": after / 1024,
                "rss_mib_afterwards": here.subject.resident_kib() / 1024,
            }
            results.append(Result(name, (after - before) / count, "KiB", goal, notes))
    return results


async def idle_tunnels(settings: Settings) -> list[Result]:
    """Tunnels that nothing was said in yet, and tunnels that rest after an exchange."""
    results = []
    for name, talks in (("idle tunnel", False), ("idle tunnel, after an exchange", True)):
        async with stage(settings) as here:
            await here.warm_up()
            before = await here.resident_kib()
            crowd = Crowd(here.subject.forward)
            count = settings.count(2_000)

            def requests(_: int, talks: bool = talks, here: Stage = here) -> Iterable[tuple[bytes, bytes]]:
                return [here.connect(), (get(PLAIN, "/ok"), KIB)] if talks else [here.connect()]

            await crowd.open(count, requests)
            after = await here.resident_kib()
            crowd.close()
            results.append(
                Result(name, (after - before) / count, "KiB", 2.0, {"tunnels": count, "rss_mib": after / 1024})
            )
    return results


#: Name, whether through a tunnel, the host, the listener, whether TLS with the client.
WAYS = (
    ("plain", False, PLAIN, "reverse", False),
    ("TLS to the origin", False, SECURE, "reverse", False),
    ("TLS with the client", False, PLAIN, "secure", True),
    ("tunnels", True, PLAIN, "forward", False),
)


async def slow_readers(settings: Settings) -> list[Result]:
    """A hundred clients that read a few KiB a second of 1 GiB each, which comes fast."""
    return [await hold(settings, "slow readers", Reader, way, 4096) for way in WAYS]


async def deaf_origins(settings: Settings) -> list[Result]:
    """A hundred clients that send 32 MiB each, as fast as they can, to origins that read nothing."""
    return [await hold(settings, "deaf origins", Sender, way, BODY) for way in WAYS]


async def hold(
    settings: Settings,
    name: str,
    kind: Callable[..., Reader | Sender],
    way: tuple[str, bool, str, str, bool],
    octets: int,
) -> Result:
    """The most that the gateway's memory gains while clients of this kind step on."""
    what, through_tunnel, host, listener, inside_tls = way
    async with stage(settings) as here:
        await here.warm_up()
        before = await here.resident_kib()
        preamble = here.connect()[0] if through_tunnel else b""
        tls = (here.subject.client_context(), host) if inside_tls else None
        request = get(host, f"/octets/{LARGE}") if kind is Reader else post(host, "/deaf", BODY)
        count, port = settings.count(100), getattr(here.subject, listener)
        clients = await asyncio.gather(*(asyncio.to_thread(kind, port, preamble, tls, request) for _ in range(count)))
        seconds = max(3.0, 10.0 * settings.scale)
        stepping = asyncio.create_task(step_all(clients, seconds, octets, 0.5))
        most = 0
        while not stepping.done():
            most = max(most, here.subject.resident_kib())
            await asyncio.sleep(0.1)
        notes = {
            "clients": count, "failed_steps": await stepping, "kib_each": (most - before) / count,
            "kib_s_each": sum(client.octets for client in clients) / 1024 / count / seconds,
        }  # fmt: skip
        for client in clients:
            client.close()
        return Result(f"{name}, {what}", (most - before) / 1024, "MiB", 64.0, notes)


def post(host: str, path: str, length: int) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n".encode()


# --- latency -----------------------------------------------------------------------------------------------------
async def lag_at_saturation(settings: Settings) -> list[Result]:
    """As many requests as it takes, on 64 connections."""
    wrk = shutil.which("wrk")
    if wrk is None:
        raise StartError("the load generator is wrk, and there is none; on Debian: apt-get install wrk")
    results = []
    for name, port, host, scheme in (
        ("lag p99, saturated, forward", "forward", PLAIN, "http://"),
        ("lag p99, saturated, TLS to the origin", "reverse", SECURE, ""),
    ):
        async with stage(settings) as here:
            await here.warm_up()
            path = here.subject.folder / "request"
            path.write_bytes(get(f"{host}:{here.origins.plain}" if scheme else host, "/ok", scheme=scheme))
            seconds = max(2, round(10 * settings.scale))
            command = (
                wrk, "-t1", "-c64", f"-d{seconds}s", "-s", str(LUA), f"http://127.0.0.1:{getattr(here.subject, port)}/",
                "--", str(path),
            )  # fmt: skip
            await here.subject.ask_probe()
            null = asyncio.subprocess.DEVNULL
            process = await asyncio.create_subprocess_exec(*command, stdin=null, stdout=null, stderr=null)
            await asyncio.sleep(1)
            beginning, _ = await here.subject.ask_probe()
            cpu_s, asked, begun = here.subject.cpu_s(), (await here.subject.sample()).requests, time.monotonic()
            await asyncio.sleep(seconds - 1.5)
            lag, _ = await here.subject.ask_probe()
            took = time.monotonic() - begun
            notes = {**shown(lag), "cpu_share": (here.subject.cpu_s() - cpu_s) / took}
            notes["requests_s"] = ((await here.subject.sample()).requests - asked) / took
            await process.wait()
            end, _ = await here.subject.ask_probe()
            results.append(Result(name, lag.busy.percentile(0.99), "ms", 20.0, notes))
            for what, of in (("begin", beginning), ("leave", end)):
                title = name.replace("lag p99, saturated", f"lag worst, 64 {what} at once")
                results.append(Result(title, of.busy.worst_ms, "ms"))
    return results


async def lag_in_reloads(settings: Settings) -> list[Result]:
    """A thousand requests a second, while a configuration with 10,000 rules is put into service, three times."""
    async with stage(settings) as here:
        await here.warm_up()
        load = Load(here.subject, here.origins, 1000, 16, random.Random(1), choices=[(Load.run_forward, 1)])
        running = asyncio.create_task(load.run())
        worst, took, all_lag = [], [], Lag()
        here.subject.configure(0, extra=many_rules(settings.count(10_000)))
        for change in range(1, 5):
            begun = time.monotonic()
            await here.subject.ask_probe()
            await here.subject.wait_for_generation(change + 1, within_s=180)
            await asyncio.sleep(1)
            lag, _ = await here.subject.ask_probe()
            if change > 1:  # the first adds the rules, the others replace them
                took.append(time.monotonic() - begun - 1)
                worst.append(lag.busy.worst_ms)
                all_lag.add(lag)
            here.subject.configure(change)
        load.is_ending = True
        await running
        notes = {
            **shown(all_lag), "median_of_worst_ms": statistics.median(worst), "seconds": statistics.median(took),
            "unexpected": sum(load.unexpected.values()), "rss_mib": here.subject.resident_kib() / 1024,
        }  # fmt: skip
        return [Result("lag worst, 10,000 rules reload", max(worst), "ms", 50.0, notes)]


async def lag_of_tiny_chunks(settings: Settings) -> list[Result]:
    """A body in chunks of 5 bytes, at once: from a client, and from an origin.

    Fewer bytes in a chunk are refused where thousands come together.
    """
    results = []
    async with stage(settings) as here:
        await here.warm_up()
        for kib in (256, 3072):
            octets = kib * 1024
            body = f"POST /echo HTTP/1.1\r\nHost: {PLAIN}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            body += TINY * (octets // 5) + b"0\r\n\r\n"
            for sender, request, end in (
                ("a client", body, b""),
                ("an origin", get(PLAIN, f"/tiny/{octets}"), b"\r\n0\r\n\r\n"),
            ):
                crowd = Crowd(here.subject.reverse)
                worst, cpu_ms = [], []
                for _ in range(5):
                    await asyncio.sleep(0.1)
                    await here.subject.ask_probe()
                    cpu_s = here.subject.cpu_s()
                    await crowd.open(1, lambda _, request=request, end=end: [(request, end)])  # type: ignore[misc]
                    cpu_ms.append((here.subject.cpu_s() - cpu_s) * 1000)
                    lag, _ = await here.subject.ask_probe()
                    worst.append(lag.busy.worst_ms)
                crowd.close()
                notes = {"cpu_ms_each": statistics.median(cpu_ms), "chunks": octets // 5, "worst_of_all_ms": max(worst)}
                name = f"worst lag (median of 5 bodies), {kib} KiB in tiny chunks from {sender}"
                results.append(Result(name, statistics.median(worst), "ms", 20.0, notes))
    return results


# --- limits ------------------------------------------------------------------------------------------------------
async def no_descriptors(settings: Settings) -> list[Result]:
    """More clients than the gateway may have descriptors: it must not spin, and serves again when they have gone."""
    async with stage(settings, descriptors=256) as here:
        crowd = Crowd(here.subject.forward)
        await crowd.open(400, lambda _: [])
        await asyncio.sleep(0.5)
        held = here.subject.descriptors()
        cpu_s, begun = here.subject.cpu_s(), time.monotonic()
        await asyncio.sleep(3)
        share = (here.subject.cpu_s() - cpu_s) / (time.monotonic() - begun)
        closed = sum(has_ended(sock) for sock in crowd.sockets)
        try:
            await asyncio.wait_for(here.subject.metrics(), 2)
            answers = "yes"
        except (OSError, TimeoutError, StartError):
            answers = "no"
        log = (here.subject.folder / "gateway.err").read_text("utf-8", "replace")
        said = sum("descriptor" in line or "open files" in line for line in log.splitlines())
        crowd.close()
        begun = time.monotonic()
        is_back = False
        while not is_back and time.monotonic() < begun + 20:
            try:
                await crowd.open(1, lambda _: [here.absolute()])
                is_back = True
            except (OSError, TimeoutError, ValueError):
                await asyncio.sleep(0.2)
        crowd.close()
        notes: dict[str, float | str] = {
            "descriptors": held,
            "closed": closed,
            "admin_answers": answers,
            "log_lines": said,
        }
        return [
            Result("CPU share without descriptors", share * 100, "%", 10.0, notes),
            Result("seconds until it serves again", time.monotonic() - begun if is_back else 99.0, "s", 5.0),
        ]


async def idle_upstreams(settings: Settings) -> list[Result]:
    """A request to each of many names: how many idle connections to origins that leaves, and what they cost."""
    async with stage(settings) as here:
        await here.warm_up()
        before, held = await here.resident_kib(), here.subject.descriptors()
        count = settings.count(3000)
        crowd = Crowd(here.subject.forward)
        await crowd.open(1, lambda _: [here.absolute(f"n{number}.soak.example") for number in range(count)])
        after = await here.resident_kib()
        upstream = (await here.subject.sample()).upstream
        crowd.close()
        notes = {"names": count, "descriptors": here.subject.descriptors() - held}
        return [
            Result("idle connections to origins", upstream, "", None, notes),
            Result("idle connection to an origin, with its name", (after - before) / count, "KiB", None),
        ]


Measure = Callable[[Settings], Awaitable[list[Result]]]
MEASURES: dict[str, Measure] = {
    "clients": idle_clients,
    "tunnels": idle_tunnels,
    "readers": slow_readers,
    "origins": deaf_origins,
    "saturated": lag_at_saturation,
    "reloads": lag_in_reloads,
    "chunks": lag_of_tiny_chunks,
    "descriptors": no_descriptors,
    "upstreams": idle_upstreams,
}


async def measure(name: str, settings: Settings) -> list[Result]:
    """Raises StartError, and whatever the clients did not expect."""
    return await MEASURES[name](settings)


def shown(lag: Lag) -> dict[str, float]:
    return {f"{name} ms": value for name, value in lag.as_dict().items()}


def has_ended(sock: socket.socket) -> bool:
    """Whether the other end has closed; reads what there is."""
    try:
        return not sock.recv(65536)
    except BlockingIOError:
        return False
    except OSError:
        return True


def many_rules(count: int) -> str:
    """HTTPRoutes of 16 rules each, which is what one may have."""
    parts = []
    for first in range(0, count, 16):
        rules = "".join(
            f"""
  - matches: [{{path: {{type: PathPrefix, value: /v1/part-{number}}}}}]
    backendRefs: [{{group: egressproxy.io, kind: Backend, name: plain}}]"""
            for number in range(first, min(first + 16, count))
        )
        parts.append(f"""---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: many-{first}}}
spec:
  parentRefs: [{{name: soak, sectionName: reverse}}]
  hostnames: [many-{first}.soak.example]
  rules:{rules}
""")
    return "".join(parts)
