"""Answers of an API server that means no good, or is none."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from egressproxy.kubernetes import api_client
from egressproxy.kubernetes.api_client import AnswerTooLong, ApiClient, ApiError
from egressproxy.kubernetes.credentials import Credentials
from egressproxy.run_options import ClusterOptions
from tests.support.api_server import ApiServer

HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"


@asynccontextmanager
async def answering(folder: Path, *pieces: bytes) -> AsyncIterator[ApiClient]:
    """A client of a server that says this to everybody."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    file = folder / "kubeconfig"
    said = ApiServer()
    said.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    file.write_text(said.kubeconfig())
    client = ApiClient(await Credentials.load(ClusterOptions(kubeconfig=file)))
    try:
        yield client
    finally:
        await client.close()
        server.close()


@pytest.mark.parametrize("after", ["nan", "inf", "-inf", "Wed, 21 Oct 2026 07:28:00 GMT", "1e999"])
async def test_a_time_to_wait_that_is_none_is_not_waited_for(tmp_path, after):
    head = f"HTTP/1.1 429 No\r\nConnection: close\r\nContent-Length: 2\r\nRetry-After: {after}\r\n\r\n{{}}"
    async with answering(tmp_path, head.encode()) as client:
        with pytest.raises(ApiError) as caught:
            await client.get("/x")
        assert caught.value.retry_after_s == 0.0


async def test_a_redirect_is_an_error_whatever_is_in_it(tmp_path):
    head = b"HTTP/1.1 302 Found\r\nConnection: close\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 13\r\n\r\n"
    async with answering(tmp_path, head + b'{"items": []}') as client:
        with pytest.raises(ApiError, match="302"):
            await client.get("/x")
        with pytest.raises(ApiError, match="302"):
            async for _ in client.lines("/x", {}, 5.0):
                pass


async def test_an_answer_that_unpacks_to_too_much_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(api_client, "MAX_ANSWER", 1 << 20)
    packed = gzip.compress(bytes(50 << 20))
    head = HEAD + f"Content-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n".encode()
    async with answering(tmp_path, head + packed) as client:
        with pytest.raises(AnswerTooLong, match="more than 1048576 bytes"):
            await client.get("/x")


async def test_an_error_is_told_in_one_line(tmp_path):
    status = {"reason": "R" * 999, "message": "first\nsecond \x1b[31m\u202e" + "m" * 999, "code": "x"}
    body = json.dumps(status).encode()
    head = f"HTTP/1.1 403 No\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    async with answering(tmp_path, head + body) as client:
        with pytest.raises(ApiError) as caught:
            await client.get("/x")
    said = str(caught.value)
    assert said.startswith("403 RRR")
    assert "first second  [31m " in said
    assert said.isprintable()
    assert len(said) < 700


async def test_lines_are_put_together_and_one_that_is_too_long_ends_the_watch(tmp_path, monkeypatch):
    async with answering(tmp_path, HEAD + b"\r\n", b"a", b"b\n\nc", b"d\ne\n", b"half") as client:
        assert [line async for line in client.lines("/x", {}, 5.0)] == [b"", b"ab", b"cd", b"e"]
    monkeypatch.setattr(api_client, "MAX_LINE", 1000)
    async with answering(tmp_path, HEAD + b"\r\n", *[bytes(300)] * 10) as client:
        with pytest.raises(ValueError, match="an event of more than"):
            async for _ in client.lines("/x", {}, 5.0):
                pass
