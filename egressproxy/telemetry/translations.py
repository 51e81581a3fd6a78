"""Translations: requests that went to a backend in another API than their client's, by both and by how they ended."""

from __future__ import annotations

from egressproxy.telemetry.label_sets import LabelSets


class Translations:
    """`counted` counts requests by (route, backend, client_api, backend_api, result): "ok", "error", "untranslatable".

    Every label is of the configuration, or one of a few words.
    """

    __slots__ = ("counted",)

    def __init__(self) -> None:
        self.counted: LabelSets[str, str, str, str, str] = LabelSets()

    def count(self, route: str, backend: str, client_api: str, backend_api: str, result: str) -> None:
        """Count one request. `backend` and `backend_api` are "-" where none could be asked."""
        self.counted.count(route, backend, client_api, backend_api, result)

    def __repr__(self) -> str:
        return f"Translations({sum(self.counted.values())})"
