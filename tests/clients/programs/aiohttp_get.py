"""aiohttp, told to look at the environment (it does not by itself)."""

import asyncio
import sys

import aiohttp


async def main(url: str) -> None:
    timeout = aiohttp.ClientTimeout(20)
    session = aiohttp.ClientSession(trust_env=True, timeout=timeout, raise_for_status=True)
    async with session, session.get(url) as response:
        print(await response.text())


asyncio.run(main(sys.argv[1]))
