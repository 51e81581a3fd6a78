"""Git over smart HTTP: `git http-backend` as a CGI program, on one bare repository below /git/project.git."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

from aiohttp import web

from tests.support.waiting import WAIT_S


def make_repository(folder: Path) -> Path:
    """A bare repository `project.git` with one commit on `main`; pushes are welcome. Returns the folder it lies in."""
    bare, work = folder / "project.git", folder / "work"
    run("init", "--quiet", "--bare", "--initial-branch=main", str(bare))
    run("-C", str(bare), "config", "http.receivepack", "true")
    run("init", "--quiet", "--initial-branch=main", str(work))
    (work / "README").write_text("a project\n", encoding="utf-8")
    run("-C", str(work), "add", "README")
    run("-C", str(work), "commit", "--quiet", "--message", "The first commit")
    run("-C", str(work), "push", "--quiet", str(bare), "main")
    return folder


def run(*arguments: str) -> None:
    """Run git without any configuration but our own."""
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for role in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{role}_NAME": "Test", f"GIT_{role}_EMAIL": "test@example.test"}
    subprocess.run(["git", *arguments], check=True, env=environment, timeout=WAIT_S)


def routes(folder: Path) -> list[web.AbstractRouteDef]:
    """Serve every repository in the folder."""

    async def backend(request: web.Request) -> web.Response:
        body = await request.read()  # without its coding
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "PATH_INFO": "/" + request.match_info["path"],
            "QUERY_STRING": request.query_string,
            "REQUEST_METHOD": request.method,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "REMOTE_USER": "test",
            "REMOTE_ADDR": request.remote or "",
        }
        if version := request.headers.get("Git-Protocol"):
            environment["GIT_PROTOCOL"] = version
        process = await asyncio.create_subprocess_exec(
            "git", "http-backend", env=environment, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate(body)
        return cgi_response(output)

    return [web.route("*", "/git/{path:.+}", backend)]


def cgi_response(output: bytes) -> web.Response:
    """A CGI program's output as a response (RFC 3875 section 6)."""
    head, _, body = output.partition(b"\r\n\r\n")
    status, fields = 200, {}
    for line in head.decode("latin-1").splitlines():
        name, _, value = line.partition(":")
        if name.lower() == "status":
            status = int(value.split()[0])
        else:
            fields[name] = value.strip()
    return web.Response(status=status, headers=fields, body=body)
