"""A client of the MCP SDK: python mcp_denied.py URL. Calls tools of which some are not allowed; prints what it saw."""

import asyncio
import json
import sys

from mcp import Client
from mcp.shared.exceptions import MCPError


async def main(url: str) -> dict[str, object]:
    seen: dict[str, object] = {}
    async with Client(url, mode="legacy") as client:
        seen["tools"] = sorted(tool.name for tool in (await client.list_tools()).tools)
        for name, tool, arguments in (
            ("denied", "interrupted", {}),
            ("too far", "count", {"upto": 50}),
            ("counted", "count", {"upto": 5}),
            ("whoami", "whoami", {}),
        ):
            try:
                seen[name] = (await client.call_tool(tool, arguments)).content[0].text
            except MCPError as error:
                seen[name] = [error.code, str(error)]
    return seen


print(json.dumps(asyncio.run(main(sys.argv[1]))))
