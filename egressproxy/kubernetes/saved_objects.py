"""The objects of the last good configuration on disk, so that a gateway starts and serves without the API server.

The file has a line about itself, then a manifest in each line. Values of Secrets are in it only where there is a key:
all manifests are encrypted then (AES-256-GCM; the key is the SHA-256 of the key file). Otherwise Secrets are left out.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

from egressproxy.kubernetes.object_store import StoredObject, lines
from egressproxy.model.published_object import Key
from egressproxy.model.sealing import WrongKey, seal, unseal
from egressproxy.net.durable_file import replace_file

log = logging.getLogger(__name__)

FILE: Final = ".cluster-objects"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class SavedObjects:
    """`packed` is as `ClusterSource.take` gives it; `resource_versions` are those of scopes, by their text."""

    packed: bytes = field(repr=False)
    resource_versions: Mapping[str, str]


def save(
    folder: Path, objects: Iterable[tuple[Key, StoredObject]], places: Mapping[str, str], key_file: Path | None
) -> None:
    """Write the file in place of the one before. Raises OSError."""
    kept = [each for key, each in objects if key_file is not None or key[:2] != ("", "Secret")]
    data = zlib.compress(lines(kept), 1)
    head = {"format": _FORMAT, "places": dict(places), "encrypted": key_file is not None}
    line = json.dumps(head).encode()
    if key_file is not None:
        data = seal(_key(key_file), data, line)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(folder / FILE, line + b"\n" + data)


def saved(folder: Path, key_file: Path | None) -> SavedObjects | None:
    """The objects that were saved last. None if there are none, or if the file cannot be used, which is logged."""
    target = folder / FILE
    try:
        line, _, data = target.read_bytes().partition(b"\n")
        head = json.loads(line)
        if head["format"] != _FORMAT:
            raise ValueError("it is of another release")
        if head["encrypted"] and key_file is None:
            raise ValueError("it is encrypted, and --state-key is not given")
        if key_file is not None and not head["encrypted"]:
            raise ValueError("it is not encrypted, although --state-key is given")
        if key_file is not None:
            data = unseal(_key(key_file), data, line)
        zlib.decompress(data)
        return SavedObjects(data, {str(scope): str(place) for scope, place in head["places"].items()})
    except FileNotFoundError:
        return None
    except WrongKey:
        log.warning("%s is not used: it was written with another --state-key, or changed", target)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        log.warning("%s is not used: %s", target, error)
    return None


def _key(file: Path) -> bytes:
    return sha256(file.read_bytes().strip()).digest()
