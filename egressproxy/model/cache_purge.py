"""CachePurge: which answers are taken out of caches. A value, which the admin API reads and workers carry out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from egressproxy.model.parameters import read_parameters

_NAMES: Final = ("route", "path", "identity", "all")


@dataclass(frozen=True, slots=True)
class CachePurge:
    """The answers for which all of these hold; "" does not choose.

    `route` is `namespace/name`, `path` a prefix of the path that clients asked for (without the query, in whatever
    percent-encoding), `identity` is `namespace/service account`, `-/-` for clients without one.
    """

    route: str = ""
    path: str = ""
    identity: str = ""

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> CachePurge:
        """The parameters of a request: one of the fields at least, or `all=1` alone. Raises ValueError, a sentence."""
        found = read_parameters(pairs, _NAMES)
        everything = found.pop("all", "")
        if everything not in ("", "1"):
            raise ValueError(f"all={everything}: write all=1")
        chosen = {name: value for name, value in found.items() if value}
        if bool(everything) == bool(chosen):
            raise ValueError("say which answers: route, path, identity or several of these; or all=1 alone")
        for name in ("route", "identity"):
            if name in chosen and chosen[name].count("/") != 1:
                raise ValueError(f"{name}={chosen[name]}: write it as namespace/name")
        if "path" in chosen and not chosen["path"].startswith("/"):
            raise ValueError(f"path={chosen['path']}: a path begins with /")
        return cls(**chosen)

    def holds(self, route: str, target: bytes, identity: str) -> bool:
        """Whether the answer to this request is meant: `target` is the path and query that the client asked for."""
        if (self.route and route != self.route) or (self.identity and identity != self.identity):
            return False
        path = unquote_to_bytes(target.partition(b"?")[0])
        return path.startswith(unquote_to_bytes(self.path))
