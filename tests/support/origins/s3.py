"""As much of S3 as `put_object`, `get_object` and `head_object` of boto3 need: path style, objects in memory.

The signature is not verified (the secret is the client's), but it has to be there, and to cover the Host that we got.
"""

from __future__ import annotations

import hashlib

from aiohttp import web


def routes() -> list[web.AbstractRouteDef]:
    """Buckets below /s3/."""
    objects: dict[str, bytes] = {}

    async def put(request: web.Request) -> web.Response:
        if (refusal := unsigned(request)) is not None:
            return refusal
        body = decoded(await request.read(), request.headers.get("Content-Encoding", ""))
        objects[request.path] = body
        return web.Response(headers={"ETag": etag(body)})

    async def get(request: web.Request) -> web.Response:
        if (refusal := unsigned(request)) is not None:
            return refusal
        found = objects.get(request.path)
        if found is None:
            return error(404, "NoSuchKey")
        return web.Response(body=found, headers={"ETag": etag(found)})

    return [web.put("/s3/{bucket}/{key:.+}", put), web.get("/s3/{bucket}/{key:.+}", get)]


def unsigned(request: web.Request) -> web.Response | None:
    """403 where the request bears no version 4 signature that covers its Host."""
    authorization = request.headers.get("Authorization", "")
    if authorization.startswith("AWS4-HMAC-SHA256 ") and "host" in authorization.partition("SignedHeaders=")[2]:
        return None
    return error(403, "SignatureDoesNotMatch")


def decoded(body: bytes, coding: str) -> bytes:
    """Undo the `aws-chunked` coding (size in hex and a signature, data, …, trailers)."""
    if "aws-chunked" not in coding:
        return body
    plain = b""
    while body:
        line, _, body = body.partition(b"\r\n")
        size = int(line.partition(b";")[0], 16)
        if size == 0:
            break
        plain += body[:size]
        body = body[size + 2 :]
    return plain


def etag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


def error(status: int, code: str) -> web.Response:
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return web.Response(status=status, text=text, content_type="application/xml")
