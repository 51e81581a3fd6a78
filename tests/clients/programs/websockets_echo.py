"""websockets: a text and a binary message of 512,000 octets, not compressed, echoed."""

import os
import ssl
import sys

from websockets.sync.client import connect

url = "ws" + sys.argv[1].removeprefix("http")
context = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"]) if url.startswith("wss:") else None
with connect(url, ssl=context, open_timeout=20, compression=None) as socket:
    socket.send("a text")
    data = bytes(range(256)) * 2000
    text = socket.recv(timeout=20)
    socket.send(data)
    print("unchanged" if (text, socket.recv(timeout=20)) == ("a text", data) else "changed on the way")
