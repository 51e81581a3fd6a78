"""Package indexes: one wheel in a PyPI simple index, one package in an npm registry."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import zipfile

from aiohttp import web

PACKAGE, VERSION = "tiny-parcel", "1.0.0"


def pypi_routes() -> list[web.AbstractRouteDef]:
    """A simple index below /simple/ (PEP 503), the wheel below /files/."""
    name = f"tiny_parcel-{VERSION}-py3-none-any.whl"
    wheel = make_wheel()
    digest = hashlib.sha256(wheel).hexdigest()

    async def index(request: web.Request) -> web.Response:
        # Relative, so that the same page works below any prefix.
        page = f'<!DOCTYPE html><html><body><a href="../../files/{name}#sha256={digest}">{name}</a></body></html>'
        return web.Response(text=page, content_type="text/html")

    async def file(_request: web.Request) -> web.Response:
        return web.Response(body=wheel, content_type="application/octet-stream")

    return [web.get(f"/simple/{PACKAGE}/", index), web.get(f"/files/{name}", file)]


def make_wheel() -> bytes:
    """A wheel with one empty module (the binary distribution format of PyPA)."""
    info = f"tiny_parcel-{VERSION}.dist-info"
    files = {
        "tiny_parcel.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return output.getvalue()


def npm_routes() -> list[web.AbstractRouteDef]:
    """A registry below /npm/ with one package; the tarball's URL is made from the Host that the request came with."""
    tarball = make_tarball()
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode()

    async def document(request: web.Request) -> web.Response:
        # With replace-registry-host npm puts the host of its registry into this URL, and keeps the path.
        url = f"{request.scheme}://{request.host}/npm/{PACKAGE}/-/{PACKAGE}-{VERSION}.tgz"
        version = {"name": PACKAGE, "version": VERSION, "dist": {"tarball": url, "integrity": integrity}}
        made = {"name": PACKAGE, "dist-tags": {"latest": VERSION}, "versions": {VERSION: version}}
        return web.json_response(made)

    async def file(_request: web.Request) -> web.Response:
        return web.Response(body=tarball, content_type="application/octet-stream")

    return [web.get(f"/npm/{PACKAGE}", document), web.get(f"/npm/{PACKAGE}/-/{PACKAGE}-{VERSION}.tgz", file)]


def make_tarball() -> bytes:
    """An npm package: a gzipped tar with everything below `package/`."""
    manifest = json.dumps({"name": PACKAGE, "version": VERSION, "main": "index.js"}).encode()
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w:gz") as archive:
        for name, data in {"package.json": manifest, "index.js": b"module.exports = 1\n"}.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return output.getvalue()
