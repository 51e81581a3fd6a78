"""The provider of `make demo`: a page and a model API on 127.0.0.1:9000, and four requests through the gateway.

`egressproxy run --config config/demo.yaml -- python3 config/demo/provider.py` starts it.
"""

import contextlib
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PROXY, API = "http://127.0.0.1:3128", "http://127.0.0.1:8080/openai/v1"
REQUESTS = [
    f"curl -s -x {PROXY} http://docs.example:9000/",
    f"curl -si -x {PROXY} http://pastebin.example/ | head -n 1",
    f"curl -si -x {PROXY} http://rebound.example:9000/latest/meta-data/ | head -n 1",
    f"""curl -s {API}/chat/completions -d '{{"model": "gpt-demo"}}'""",
]


class Provider(BaseHTTPRequestHandler):
    """Answers GET with a page, and POST as the chat completions of OpenAI, with the key that it was shown."""

    def do_GET(self) -> None:
        self.answer(b"Hello from docs.example.\n", "text/plain")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        said = {"role": "assistant", "content": f"You sent {self.headers['Authorization']}"}
        body = {"model": "gpt-demo", "choices": [{"message": said}]}
        self.answer(json.dumps(body).encode() + b"\n", "application/json")

    def answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


try:
    server = ThreadingHTTPServer(("127.0.0.1", 9000), Provider)
except OSError as error:
    sys.exit(
        f"the provider of the demo needs 127.0.0.1:9000: {error.strerror}. `ss -ltnp 'sport = :9000'` names the process"
    )
threading.Thread(target=server.serve_forever, daemon=True).start()
for request in REQUESTS:
    print(f"\n$ {request}", flush=True)
    subprocess.run(["sh", "-c", request], check=True)
if sys.stdin.isatty():
    with contextlib.suppress(KeyboardInterrupt, EOFError):
        input("\nThe gateway serves until you press Enter: send requests of your own from another terminal. ")
