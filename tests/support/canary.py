"""The canary grep: whether a key shows anywhere that a gateway can be asked, or that it has written.

`Canary` walks the whole admin address (every API, every object, every Event, metrics, dumps, explanations) and reads
the log, the diagnostics and what else a test has collected, and looks for each key in the forms in which it could show.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from egressproxy.admin.introspection import VIEWS
from tests.support.process import GatewayProcess


class Canary:
    """`keys` must show nowhere. `asked` are URLs that /explain is asked about."""

    def __init__(self, keys: Iterable[str], asked: Iterable[str] = ()) -> None:
        self.keys = tuple(keys)
        self._forms = {form for key in self.keys for form in forms(key)}
        self._asked = tuple(asked)

    def look(self, gateway: GatewayProcess, *collected: str) -> dict[str, str]:
        """Everything that was read, by its place. Raises AssertionError with the places that show a key."""
        texts = self.read(gateway)
        texts |= {f"collected {number}": text for number, text in enumerate(collected)}
        found = [place for place, text in texts.items() if any(form in text for form in self._forms)]
        assert not found, f"a key shows in {', '.join(found)}"
        return texts

    def read(self, gateway: GatewayProcess) -> dict[str, str]:
        """What the gateway says, by its place."""
        texts = {
            "stderr": gateway.stderr,
            "access log": Path(gateway.access_log_path).read_text(encoding="utf-8", errors="replace"),
        }
        paths = ["/", "/metrics", "/config", "/config?output=yaml", "/model", "/decisions", "/version", "/api", "/apis"]
        paths += ["/openapi/v2", *VIEWS]
        paths += [f"/explain?url={quote(url, safe='')}" for url in self._asked]
        for path in [*paths, *self._objects(gateway)]:
            texts[path] = gateway.admin(path)[1]
        return texts

    @staticmethod
    def _objects(gateway: GatewayProcess) -> list[str]:
        """The lists of every kind of every version of every group."""
        roots = ["/api/v1"]
        for group in json.loads(gateway.admin("/apis")[1])["groups"]:
            roots += [f"/apis/{version['groupVersion']}" for version in group["versions"]]
        found = []
        for root in roots:
            status, text = gateway.admin(root)
            if status == 200:
                found += [f"{root}/{kind['name']}" for kind in json.loads(text)["resources"]]
        return found


def forms(key: str) -> set[str]:
    """A key as it is, quoted, and in base64 at every alignment; of its first and last 12 characters, too."""
    made = {key, quote(key, safe=""), key[:12], key[-12:], key.encode().hex()}
    for before in range(3):
        whole = b64encode(b"\0" * before + key.encode()).rstrip(b"=")
        made.add(whole[(before * 8 + 5) // 6 : (before + len(key)) * 8 // 6].decode())
    return made
