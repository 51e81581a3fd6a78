"""A client of the MCP SDK: python mcp_tools.py URL [MODE]. Prints what it saw, as JSON."""

import asyncio
import json
import sys

from mcp import Client
from mcp.shared.exceptions import MCPError


async def main(url: str, mode: str) -> dict[str, object]:
    seen: dict[str, object] = {}
    try:
        async with Client(url, mode=mode) as client:
            steps: list[float] = []

            async def progress(done: float, total: float | None, message: str | None) -> None:
                steps.append(done)

            async def call(tool: str, **arguments: object) -> str:
                result = await client.call_tool(tool, arguments, progress_callback=progress)
                return result.content[0].text

            seen["tools"] = sorted(tool.name for tool in (await client.list_tools()).tools)
            seen["whoami"] = sorted({await call("whoami") for _ in range(8)})
            seen["counted"] = await call("count", upto=5)
            seen["steps"] = steps[:]
            if mode == "legacy":
                steps.clear()
                seen["interrupted"] = await call("interrupted")
                seen["steps again"] = steps[:]
    except* MCPError as errors:
        (error,) = errors.exceptions
        while isinstance(error, ExceptionGroup):
            (error,) = error.exceptions
        seen |= {"code": error.code, "error": str(error)}
    return seen


print(json.dumps(asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "legacy"))))
