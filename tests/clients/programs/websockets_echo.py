"""websockets: a text and a binary message of 512,000 octets, not compressed, echoed.

With its asyncio client: that of threads reads and writes one SSLSocket in two of them, and hangs once in some hundred
runs, without a proxy too.
"""

import asyncio
import os
import ssl
import sys

from websockets.asyncio.client import connect


async def main() -> None:
    url = "ws" + sys.argv[1].removeprefix("http")
    context = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"]) if url.startswith("wss:") else None
    async with connect(url, ssl=context, open_timeout=20, compression=None) as socket:
        await socket.send("a text")
        data = bytes(range(256)) * 2000
        async with asyncio.timeout(40):
            text = await socket.recv()
            await socket.send(data)
            print("unchanged" if (text, await socket.recv()) == ("a text", data) else "changed on the way")


asyncio.run(main())
