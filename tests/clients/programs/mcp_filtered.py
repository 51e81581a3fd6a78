"""A client of the MCP SDK: python mcp_filtered.py URL http|sse CALLS. Prints what each call has said, as JSON.

CALLS is JSON: a list of [tool, arguments].
"""

import asyncio
import json
import sys

from mcp import Client
from mcp.client.sse import sse_client
from mcp.shared.exceptions import MCPError


async def main(url: str, transport: str, calls: list[tuple[str, dict[str, object]]]) -> dict[str, object]:
    said: list[object] = []
    server = sse_client(url) if transport == "sse" else url
    async with Client(server, mode="legacy", read_timeout_seconds=3) as client:
        tools = sorted(tool.name for tool in (await client.list_tools()).tools)
        for tool, arguments in calls:
            try:
                said.append((await client.call_tool(tool, arguments)).content[0].text)
            except MCPError as error:
                said.append([error.code, str(error)])
    return {"tools": tools, "said": said}


print(json.dumps(asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))))
