"""A write, worked out on all objects: the configuration with it, and the file to keep it in, staged."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from egressproxy.config.compile import Compiled
from egressproxy.config.load import ResourceSet, load
from egressproxy.config.problems import ConfigError
from egressproxy.loading.compilation import compiled
from egressproxy.loading.outcome import Outcome, write_outcome
from egressproxy.loading.result import Loaded
from egressproxy.loading.writes.change import Change, changed, refusal_of
from egressproxy.loading.writes.staging import stage
from egressproxy.model.api_write import Verb, Write, WriteRefused, Written
from egressproxy.transport.listening import why_unusable

__all__ = ["written"]


def written(
    paths: tuple[Path, ...],
    bind: tuple[str, ...],
    previous: Compiled | None,
    state: Path,
    write: Write,
    hand_over: Callable[[ResourceSet, Compiled, Compiled | None], Loaded],
) -> bytes:
    """An Outcome, or a WriteRefused, as `loading.outcome` writes it."""
    try:
        return write_outcome(_outcome(paths, bind, previous, state, write, hand_over))
    except WriteRefused as refused:
        return write_outcome(refused)
    except Exception as error:
        # Its text may hold anything, a Secret's value, too: the place says enough.
        place = traceback.extract_tb(error.__traceback__)[-1]
        print(f"internal error: {type(error).__name__} at {place.filename}:{place.lineno}", file=sys.stderr)
        message = f"the write cannot be worked out ({type(error).__name__}); the gateway's log says where"
        return write_outcome(WriteRefused(500, "InternalError", message))


def _outcome(
    paths: tuple[Path, ...],
    bind: tuple[str, ...],
    previous: Compiled | None,
    state: Path,
    write: Write,
    hand_over: Callable[[ResourceSet, Compiled, Compiled | None], Loaded],
) -> Outcome:
    try:
        resources = load(paths, state)
    except ConfigError as error:
        message = f"the configuration cannot be read, with or without this: {error}"
        raise WriteRefused(503, "ServiceUnavailable", message) from None
    change = changed(resources, write, state)
    if change.is_same:
        return Outcome(_written(change, ""), None)
    try:
        made = compiled(change.resources, bind, previous, why_unusable)
    except ConfigError as error:
        raise refusal_of(error, write, change.resource.name, change.file) from None
    if change.is_dry_run:
        return Outcome(_written(change, ""), None)
    if write.verb is not Verb.DELETE:
        try:
            stage(change.file, change.text)
        except OSError as error:
            message = f"{change.file} cannot be written: {error.strerror}"
            raise WriteRefused(500, "InternalError", message) from None
    return Outcome(_written(change, str(change.file)), hand_over(change.resources, made, previous))


def _written(change: Change, file: str) -> Written:
    shown = change.resource.to_manifest()  # without a Secret's values
    uid = str(shown["metadata"].get("uid", ""))
    return Written(change.resource.name, uid, json.dumps(shown).encode(), change.is_new, file, change.warnings)
