"""A client of the MCP SDK that asks the gateway itself, through the proxy of its environment: python mcp_egress.py URL.
Prints what it saw, as JSON.
"""

import asyncio
import json
import sys

from mcp import Client


async def main(url: str) -> dict[str, object]:
    async with Client("http://egress.internal/mcp", mode="legacy") as client:
        tools = sorted(tool.name for tool in (await client.list_tools()).tools)
        access = await client.call_tool("egress_access", {})
        check = await client.call_tool("egress_check", {"url": url})
        return {"tools": tools, "access": access.structured_content, "check": check.structured_content}


print(json.dumps(asyncio.run(main(sys.argv[1]))))
