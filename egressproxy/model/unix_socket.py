"""UnixSocket: a listening address of a Gateway:
`unix:///run/egressproxy/agents.sock?mode=0660&owner=agents&group=agents`. Default: 0600, and the owner and group of the
process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: The `type` of such an address in spec.addresses of a Gateway.
UNIX_SOCKET = "egressproxy.io/UnixSocket"
SCHEME = "unix://"
#: sockaddr_un has room for 108 bytes, with a NUL behind them (unix(7)).
MAX_PATH = 107
DEFAULT_MODE = 0o600
_PATH = re.compile(r"(?:/[A-Za-z0-9@:,._+=~-]+)+")
_MODE = re.compile(r"0?[0-7]{3}")
_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}|[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """`owner` and `group` are names or numbers, "" for those of the process."""

    path: str
    mode: int = DEFAULT_MODE
    owner: str = ""
    group: str = ""

    def __str__(self) -> str:
        asked = [f"mode={self.mode:04o}"] * (self.mode != DEFAULT_MODE)
        asked += [f"owner={self.owner}"] * bool(self.owner) + [f"group={self.group}"] * bool(self.group)
        return f"{SCHEME}{self.path}{'?' if asked else ''}{'&'.join(asked)}"


def is_unix(address: str) -> bool:
    """Whether this address to bind is a Unix socket; else it is an IP literal."""
    return address.startswith(SCHEME)


def parse_unix_socket(text: str) -> UnixSocket:
    """Raises ValueError, whose message has the fault and the remedy."""
    if not is_unix(text):
        raise ValueError("write it as unix:///run/egressproxy/agents.sock?mode=0660")
    path, _, query = text.removeprefix(SCHEME).partition("?")
    parts = path.split("/")
    if not _PATH.fullmatch(path) or "." in parts or ".." in parts:
        raise ValueError("the path begins with / and consists of letters, digits and @:,._+=~-, without . and .. in it")
    if len(path) > MAX_PATH:
        raise ValueError(f"the path of a Unix socket has {MAX_PATH} bytes at most, and this one has {len(path)}")
    asked: dict[str, str] = {}
    for part in query.split("&") if query else ():
        name, _, value = part.partition("=")
        pattern = {"mode": _MODE, "owner": _NAME, "group": _NAME}.get(name)
        if pattern is None or name in asked or not pattern.fullmatch(value):
            raise ValueError(f"{part!r} is not understood: write mode=0660, owner=NAME or group=NAME, each once")
        asked[name] = value
    mode = int(asked["mode"], 8) if "mode" in asked else DEFAULT_MODE
    return UnixSocket(path, mode, asked.get("owner", ""), asked.get("group", ""))
