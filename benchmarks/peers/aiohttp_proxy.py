"""A forward and a reverse proxy out of aiohttp's server and client, on uvloop: what one writes in an afternoon.

It does what the others do: names, a limit on the rate of requests and on bodies, header edits, a credential over TLS,
counters, one line of JSON for every exchange. Best for it: one session, no DNS, no automatic fields, no decompression.
"""

import argparse
import asyncio
import json
import os
import socket
import ssl
import time

import aiohttp
import uvloop
from aiohttp import web
from aiohttp.abc import AbstractResolver
from multidict import CIMultiDict
from yarl import URL

NAMES = set(os.environ["BENCH_NAMES"].split(","))
TOKEN = "Bearer " + os.environ["BENCH_TOKEN"]
UPSTREAM = "upstream.bench.example"
HOP_BY_HOP = ("Connection", "Keep-Alive", "Proxy-Connection", "TE", "Trailer", "Transfer-Encoding", "Upgrade")
AUTOMATIC = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
PER_SECOND = 1_000_000


class Here(AbstractResolver):
    """Names are not resolved: everything is on this machine."""

    async def resolve(self, host, port=0, family=socket.AF_INET):
        entry = {"hostname": host, "host": "127.0.0.1", "port": port, "family": socket.AF_INET, "proto": 0, "flags": 0}
        return [entry]

    async def close(self):
        pass


class Bench:
    def __init__(self, options):
        self.options = options
        self.log = open(options.log, "a", buffering=65536)  # noqa: SIM115
        self.counts = {}
        self.second, self.requests = 0, 0
        self.lines = 0

    async def run(self):
        context = ssl.create_default_context(cafile=self.options.ca)
        connector = aiohttp.TCPConnector(limit=0, resolver=Here(), ssl=context, keepalive_timeout=60)
        timeout = aiohttp.ClientTimeout(total=60, sock_connect=5)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False, skip_auto_headers=AUTOMATIC,
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as self.session:  # fmt: skip
            for handler, port in ((self.forward, self.options.forward), (self.reverse, self.options.reverse)):
                runner = web.ServerRunner(web.Server(handler, access_log=None))
                await runner.setup()
                await web.TCPSite(runner, "127.0.0.1", port).start()
            await asyncio.Event().wait()

    async def forward(self, request):
        url = request.message.url
        if url.host not in NAMES:
            return web.Response(status=403)
        return await self.pass_on(request, url, CIMultiDict(request.headers))

    async def reverse(self, request):
        host = request.headers.get("Host", "").partition(":")[0]
        port = self.options.upstream if host in NAMES else self.options.events if host.startswith("events.") else 0
        if not port:
            return web.Response(status=403)
        fields = CIMultiDict(request.headers)
        fields["Host"] = UPSTREAM
        fields["Authorization"] = TOKEN
        return await self.pass_on(request, URL(f"https://{UPSTREAM}:{port}{request.raw_path}", encoded=True), fields)

    async def pass_on(self, request, url, fields):
        now = time.time()
        if int(now) != self.second:
            self.second, self.requests = int(now), 0
        self.requests += 1
        if self.requests > PER_SECOND:
            return web.Response(status=429)
        if (request.content_length or 0) > 1048576:
            return web.Response(status=413)
        for name in HOP_BY_HOP:
            fields.popall(name, None)
        fields["X-Gateway"] = "bench"
        fields.popall("X-Debug", None)
        body = request.content if request.body_exists else None
        async with self.session.request(
            request.method, url, headers=fields, data=body, allow_redirects=False
        ) as upstream:
            edited = CIMultiDict(upstream.headers)
            for name in HOP_BY_HOP:
                edited.popall(name, None)
            edited["X-Served-By"] = "bench"
            edited.popall("X-Internal-Note", None)
            if upstream.content_length is not None:
                response = web.Response(status=upstream.status, headers=edited, body=await upstream.read())
                await response.prepare(request)
                await response.write_eof()
            else:
                response = web.StreamResponse(status=upstream.status, headers=edited)
                await response.prepare(request)
                async for piece in upstream.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
        self.counts[upstream.status] = self.counts.get(upstream.status, 0) + 1
        line = {
            "time": now,
            "client": request.remote,
            "method": request.method,
            "authority": url.host,
            "path": url.path,
            "status": upstream.status,
            "duration_ms": (time.time() - now) * 1000,
        }
        self.log.write(json.dumps(line) + "\n")
        return response


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--forward", "--reverse", "--upstream", "--events"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--ca", required=True)
    parser.add_argument("--log", required=True)
    uvloop.run(Bench(parser.parse_args()).run())


if __name__ == "__main__":
    main()
