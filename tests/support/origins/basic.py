"""What any client test needs: a greeting, echoes, downloads, streams, status codes, a WebSocket.

GET  /hello                 "hello from the origin"
ANY  /headers               the request's head as JSON: method, target, fields
ANY  /echo                  the body back, with its type
PUT  /upload, POST          JSON: how many bytes came, and their SHA-256
GET  /bytes/{n}             n bytes, with Content-Length
GET  /chunked/{n}           n chunks, "chunk 0\\n" …
GET  /sse/{n}               n server-sent events and "[DONE]"
GET  /gzip                  JSON, compressed
ANY  /status/{code}         that status
GET  /redirect              302 to /hello
GET  /ws                    a WebSocket that echoes
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib

from aiohttp import WSMsgType, web

GREETING = "hello from the origin"


def pattern(count: int) -> bytes:
    """The bytes of /bytes/{count}: not constant, so that a shift or a gap shows."""
    block = bytes(range(251))
    return (block * (count // len(block) + 1))[:count]


def routes() -> list[web.AbstractRouteDef]:
    return [
        web.get("/hello", hello),
        web.get("/", hello),
        web.route("*", "/headers", headers),
        web.route("*", "/echo", echo),
        web.route("*", "/upload", upload),
        web.get("/bytes/{count}", download),
        web.get("/chunked/{count}", chunked),
        web.get("/sse/{count}", events),
        web.get("/gzip", compressed),
        web.route("*", "/status/{code}", status),
        web.get("/redirect", redirect),
        web.get("/ws", websocket),
    ]


async def hello(_request: web.Request) -> web.Response:
    return web.Response(text=GREETING)


async def headers(request: web.Request) -> web.Response:
    fields = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in request.raw_headers]
    return web.json_response({"method": request.method, "target": request.raw_path, "fields": fields})


async def echo(request: web.Request) -> web.Response:
    return web.Response(body=await request.read(), content_type=request.content_type)


async def upload(request: web.Request) -> web.Response:
    digest, count = hashlib.sha256(), 0
    async for piece in request.content.iter_any():
        digest.update(piece)
        count += len(piece)
    return web.json_response({"octets": count, "sha256": digest.hexdigest()})


async def download(request: web.Request) -> web.Response:
    return web.Response(body=pattern(int(request.match_info["count"])))


async def chunked(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    response.enable_chunked_encoding()
    await response.prepare(request)
    for number in range(int(request.match_info["count"])):
        await response.write(b"chunk %d\n" % number)
        await asyncio.sleep(0)
    return response


async def events(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    await response.prepare(request)
    for number in range(int(request.match_info["count"])):
        await response.write(b'data: {"number": %d}\n\n' % number)
        await asyncio.sleep(0.001)
    await response.write(b"data: [DONE]\n\n")
    return response


async def compressed(_request: web.Request) -> web.Response:
    body = gzip.compress(b'{"compressed": true}')
    return web.Response(body=body, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"})


async def status(request: web.Request) -> web.Response:
    return web.Response(status=int(request.match_info["code"]), text="as you wish")


async def redirect(_request: web.Request) -> web.Response:
    return web.Response(status=302, headers={"Location": "/hello"})


async def websocket(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        if message.type is WSMsgType.TEXT:
            await socket.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await socket.send_bytes(message.data)
    return socket
