"""BackendChoice: what filters of one request say about the backends of its rule."""

from __future__ import annotations


class BackendChoice:
    """`excluded` are "namespace/name" of backends that must not get the request; `preferred` is asked first, "" if none
    is.
    """

    __slots__ = ("excluded", "preferred")

    def __init__(self) -> None:
        self.excluded: set[str] = set()
        self.preferred = ""
