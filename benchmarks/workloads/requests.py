"""W1, W1u, W1s, W2, L, Lp and W7: requests on connections that stay, by wrk, and by h2load where they are HTTP/2."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path

from benchmarks.generators import LoadError, Outcome, run_generator, run_h2load
from benchmarks.proxies.base import Proxy
from benchmarks.workloads.base import CpuTime, Round, Workload, read_answer
from benchmarks.world import AI_HOST, BODY, COMPLETION, QUESTION, REPOSITORY, World, find_program

CONNECTIONS = 64
#: With Host, a request has 12 fields.
REQUEST_FIELDS = (
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Safari/537.36",
    "Accept: application/json, text/plain;q=0.9, */*;q=0.8",
    "Accept-Language: en-US,en;q=0.5",
    "Accept-Encoding: gzip, deflate, br",
    "Cache-Control: no-cache",
    "Referer: http://h137.bench.example/index.html",
    "Cookie: session=4f0c2c9d1b7e4b06a7a2d2b7d7f7a1c3; theme=dark",
    "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "X-Client-Version: 5.12.0",
    "X-Debug: removed-by-the-proxy",
    "Authorization: Bearer the-clients-own",
)
#: The same number, with ids that `load/requests.lua` makes.
UNIQUE_FIELDS = (
    *(field for field in REQUEST_FIELDS if not field.startswith(("Traceparent", "X-Client-Version"))),
    "Traceparent: 00-@ID@@ID@-@ID@-01",
    "X-Request-Id: @ID@@ID@",
)
#: What an SDK sends.
AI_FIELDS = (
    "Content-Type: application/json",
    "Accept: application/json",
    "Accept-Encoding: identity",
    "User-Agent: OpenAI/Python 3.54.0",
    "Authorization: Bearer the-clients-own",
    "X-Stainless-Lang: python",
    "X-Stainless-Runtime: CPython",
)
SCRIPT = REPOSITORY / "benchmarks" / "load" / "requests.lua"


class Requests(Workload):
    """One request, again and again."""

    figure = "CPU µs/request"
    per_second = "requests/s"
    listener: str

    def __init__(self, name: str, title: str) -> None:
        self.name = name
        self.title = title

    def request(self, proxy: Proxy, world: World) -> bytes:
        raise NotImplementedError

    def check(self, proxy: Proxy, world: World) -> None:
        what = f"{proxy.name} in {self.name}"
        try:
            with socket.create_connection(("127.0.0.1", proxy.ports[self.listener]), timeout=20) as connection:
                connection.sendall(self.request(proxy, world))
                answer, body = read_answer(connection, what)
        except OSError as error:
            raise LoadError(f"{what}: {error}") from None
        if body != BODY.encode():
            raise LoadError(f"{what}: the body is another: {body[:200]!r}")
        served_by, note = answer.getheader("X-Served-By"), answer.getheader("X-Internal-Note")
        if proxy.edits and (served_by != "bench" or note is not None):
            raise LoadError(f"{what}: it does not edit the response as its configuration says")

    def measure(self, proxy: Proxy, world: World, seconds: float) -> Round:
        cpu = CpuTime(proxy)
        outcome = self.load(proxy, world, seconds)
        return Round(cpu.settled_seconds() / outcome.units * 1e6, outcome, cpu.resident_mib())

    def load(self, proxy: Proxy, world: World, seconds: float) -> Outcome:
        wrk = find_program("wrk")
        if wrk is None:
            raise LoadError(
                "the generator of W1, W2, S and L is wrk, and there is none; on Debian: apt-get install wrk"
            )
        path = self._write_request(proxy, world)
        words = [str(path), *(["closes"] if proxy.closes_silently else [])]
        command = [
            wrk, "-t1", f"-c{CONNECTIONS}", f"-d{max(1, round(seconds))}s", "--timeout", "10s", "-s", str(SCRIPT),
            f"http://127.0.0.1:{proxy.ports[self.listener]}/", "--", *words,
        ]  # fmt: skip
        return run_generator(command, seconds, f"{self.name} through {proxy.name}")

    def _write_request(self, proxy: Proxy, world: World) -> Path:
        path = world.folder / f"{self.name}-{proxy.name}.request"
        path.write_bytes(self.request(proxy, world))
        return path


class Forward(Requests):
    """Absolute-form, as a client that knows of its proxy writes it; `path` is that of `peers/upstream.conf`.

    `/small` leaves out the fields. With `/unique` each request has ids of its own, and so has each answer.
    """

    listener = "FORWARD"

    def __init__(self, name: str, title: str, path: str = "/full") -> None:
        super().__init__(name, title)
        self._path = path

    def request(self, proxy: Proxy, world: World) -> bytes:
        host = f"{proxy.host}:{world.plain_port}"
        path = self._path + ("" if proxy.edits else "-unedited")
        fields = {"/small": REQUEST_FIELDS[:1], "/unique": UNIQUE_FIELDS}.get(self._path, REQUEST_FIELDS)
        return _write(f"GET http://{host}{path} HTTP/1.1", host, fields)


class Reverse(Requests):
    """Origin-form to a listener that knows its backends."""

    listener = "REVERSE"

    def request(self, proxy: Proxy, world: World) -> bytes:
        return _write("GET /full" + ("" if proxy.edits else "-unedited") + " HTTP/1.1", proxy.host, REQUEST_FIELDS)


class Http2Reverse(Reverse):
    """The request of W2 by prior knowledge of HTTP/2, many at a time on few connections."""

    def load(self, proxy: Proxy, world: World, seconds: float) -> Outcome:
        path = "/full" + ("" if proxy.edits else "-unedited")
        url = f"http://127.0.0.1:{proxy.ports[self.listener]}{path}"
        fields = (f":authority: {proxy.host}", *REQUEST_FIELDS)
        return run_h2load(url, seconds, fields, f"{self.name} through {proxy.name}")


class LlmGateway(Reverse):
    """What a gateway of the application's world takes for the work of W2."""

    def choose(self, proxies: Sequence[Proxy]) -> list[Proxy]:
        return [proxy for proxy in proxies if proxy.name in ("egressproxy", "litellm", "litellm-bare")]


class AiCalls(LlmGateway):
    """Calls of a language model: the key is put in, tokens count against a quota, personal data is redacted."""

    def request(self, proxy: Proxy, world: World) -> bytes:
        fields = (*AI_FIELDS, f"Content-Length: {len(QUESTION)}")
        return _write("POST /v1/chat/completions HTTP/1.1", AI_HOST, fields) + QUESTION.encode()

    def check(self, proxy: Proxy, world: World) -> None:
        what = f"{proxy.name} in {self.name}"
        try:
            with socket.create_connection(("127.0.0.1", proxy.ports[self.listener]), timeout=60) as connection:
                connection.sendall(self.request(proxy, world))
                _, body = read_answer(connection, what)  # the upstream refuses what is not redacted, or has no key
        except OSError as error:
            raise LoadError(f"{what}: {error}") from None
        said, expected = json.loads(body), json.loads(COMPLETION)
        if said["choices"][0]["message"]["content"] != expected["choices"][0]["message"]["content"]:
            raise LoadError(f"{what}: the answer is another: {body[:200]!r}")
        if said["usage"]["total_tokens"] != expected["usage"]["total_tokens"]:
            raise LoadError(f"{what}: the usage is another: {said['usage']!r}")


def _write(line: str, host: str, fields: Sequence[str]) -> bytes:
    return "\r\n".join([line, f"Host: {host}", *fields, "", ""]).encode()
