"""Watches: the changes of a collection, told as they happen.

A watch is one answer that goes on: it sleeps until something has changed, and costs nothing meanwhile. They are bounded
in number, each ends after a while, and all of them end when the gateway drains.
Source: Kubernetes API concepts, "Efficient detection of changes", watch bookmarks, streaming lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

from egressproxy.admin.status import ApiError, failure
from egressproxy.admin.write_access import CHECK_S
from egressproxy.kubeapi.list_options import ApiResource, Form, Options
from egressproxy.kubeapi.read import documents
from egressproxy.kubeapi.read.objects import Gone, ObjectChange, Objects, View
from egressproxy.kubeapi.read.representations import in_form, published, table
from egressproxy.model.encoding import line
from egressproxy.model.published_object import PublishedObject

#: Of the connections of the admin server; the rest stays for those who ask.
MAX_WATCHES: Final = 40
TIMEOUT_S: Final = 30 * 60.0
BOOKMARK_S: Final = 60.0
#: Between a change and the look at it: what changes at once is told at once, a busy source is not looked at forever.
PAUSE_S: Final = 0.05
#: Objects that are encoded in one go.
_PIECE: Final = 200

_EXPIRED: Final = "too old resource version; list again, and watch from there"


class Watches:
    """The watches of one admin server."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._open = 0
        self._is_over = False

    @contextmanager
    def slot(self) -> Iterator[None]:
        """A slot that a watch takes for as long as it lasts. Raises ApiError(429) where all are taken."""
        if self._open >= MAX_WATCHES:
            message = f"{MAX_WATCHES} watches are open; close one, or try later"
            raise ApiError(429, "TooManyRequests", message, retry_after_s=5)
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def end(self) -> None:
        """End all watches now; there will be no more."""
        self._is_over = True
        self._objects.changed()

    async def begin(self, asked: ApiResource, options: Options, form: Form) -> AsyncGenerator[bytes, None]:
        """What to send, piece by piece, until the watch is over: b"" after `CHECK_S` without changes. Raises ApiError
        where it cannot begin.
        """
        view = await self._objects.view()
        has_initial = not options.version if options.send_initial is None else options.send_initial
        documents.check_has_been(options.version, view, asked)
        encoder = _Encoder(asked, options, form)
        if has_initial:
            return self._pieces(encoder, view.version, view)
        version = options.version or view.version
        try:
            self._objects.since(version)
        except Gone:
            raise ApiError(410, "Expired", _EXPIRED) from None
        return self._pieces(encoder, version, None)

    async def _pieces(self, encoder: _Encoder, version: int, initial: View | None) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        options = encoder.options
        end = loop.time() + (options.timeout_s or TIMEOUT_S)
        if initial is not None:
            entries = filter(encoder.asked.has, initial.entries())
            while (piece := await asyncio.to_thread(encoder.initial, entries, initial)) is not None:
                yield piece
            if options.send_initial and options.has_bookmarks:
                yield encoder.bookmark(version, is_initial_end=True)
        bookmark_at = loop.time() + BOOKMARK_S
        while not self._is_over:
            signal = self._objects.signal
            view = await self._objects.view()
            try:
                changes = self._objects.since(version)
            except Gone:
                yield _line("ERROR", failure(410, "Expired", _EXPIRED))
                return
            version = changes[-1].version if changes else max(version, view.version)
            selected = [change for change in changes if encoder.asked.has(change.entry)]
            if selected:
                yield await asyncio.to_thread(encoder.changes, selected)
            now = loop.time()
            if options.has_bookmarks and (now >= bookmark_at or now >= end):
                yield encoder.bookmark(version)
                bookmark_at = now + BOOKMARK_S
            if now >= end:
                return
            until = min(end, now + CHECK_S, bookmark_at if options.has_bookmarks else end)
            try:
                await asyncio.wait_for(signal.wait(), until - now)
                await asyncio.sleep(PAUSE_S)
            except TimeoutError:
                yield b""


class _Encoder:
    """Changes as lines of JSON, in the form that one watcher wants. Its methods may run in a thread, one at a time."""

    def __init__(self, asked: ApiResource, options: Options, form: Form) -> None:
        self.asked = asked
        self.options = options
        self._form = form
        self._has_columns = True

    def initial(self, entries: Iterator[PublishedObject], view: View) -> bytes | None:
        """The next objects, as if they had just been added; None at the end."""
        piece = list(islice(entries, _PIECE))
        if not piece:
            return None
        manifests = (self._manifest(entry, view.version_at(entry.key)) for entry in piece)
        return b"".join(self._event("ADDED", made) for made in manifests if documents.matches(made, self.options))

    def changes(self, changes: Iterable[ObjectChange]) -> bytes:
        return b"".join(self._change(change) for change in changes)

    def bookmark(self, version: int, *, is_initial_end: bool = False) -> bytes:
        metadata: dict[str, Any] = {"resourceVersion": str(version), "creationTimestamp": None}
        if is_initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        if self._form is Form.TABLE:
            return _line("BOOKMARK", table(self.asked.kind, (), metadata, has_columns=False))
        made = {"kind": self.asked.kind.kind, "apiVersion": self.asked.api_version, "metadata": metadata}
        return self._event("BOOKMARK", made)

    def _change(self, change: ObjectChange) -> bytes:
        """A change as a client sees it that sees only what the selectors select; b"" where it sees nothing of it."""
        made = self._manifest(change.entry, change.version)
        is_wanted = documents.matches(made, self.options)
        if change.before is None:
            return self._event(change.type.value, made) if is_wanted else b""
        before = self._manifest(change.before, change.version)
        if documents.matches(before, self.options):
            return self._event("MODIFIED", made) if is_wanted else self._event("DELETED", before)
        return self._event("ADDED", made) if is_wanted else b""

    def _manifest(self, entry: PublishedObject, version: int | None) -> dict[str, Any]:
        return published(entry, version, self.asked.api_version)

    def _event(self, kind: str, made: dict[str, Any]) -> bytes:
        shown = in_form(self._form, self.asked.kind, made, self.options.include_object, self._has_columns)
        self._has_columns = False
        return _line(kind, shown)


def _line(kind: str, made: dict[str, Any]) -> bytes:
    return line({"type": kind, "object": made}) + b"\n"
