"""Values as bytes between our own processes; the unpickler creates only named classes. The bytes may hold secrets: send
them only through inherited pipes, never into a file, a log or a message.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path
from typing import Any, Final

from egressproxy.model.secret import SecretBytes

ADDRESSES: Final = (IPv4Address, IPv4Network, IPv6Address, IPv6Network)
#: Module and name -> the class, or None for a class that must not be created.
FindClass = Callable[[str, str], type | None]


def classes(known: Iterable[type]) -> FindClass:
    """Finds these classes alone, not the other names of their modules: `dataclass`, for one, executes its arguments."""
    by_name = {(each.__module__, each.__qualname__): each for each in known}
    return lambda module, name: by_name.get((module, name))


#: Values of built-in types name no class.
_NO_CLASS: Final = classes(())


class Pickler(pickle.Pickler):
    """Dataclasses by their fields (read faster than by their names), enums by value, addresses and paths by text
    (Python's own form differs between versions), secrets revealed.
    """

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, Enum):
            return kind, (value.value,)
        if kind in ADDRESSES:
            return kind, (str(value),)
        if isinstance(value, Path):
            return Path, (str(value),)
        if kind is SecretBytes:
            return SecretBytes, (value.reveal(),)
        if is_dataclass(kind):
            return kind, tuple([getattr(value, field.name) for field in fields(kind)])
        return NotImplemented


class Unpickler(pickle.Unpickler):
    """Creates only classes that `find` knows. Raises UnpicklingError for another class ("… is no {what}"), and errors
    of many types for invalid bytes.
    """

    def __init__(self, file: io.BufferedIOBase, find: FindClass = _NO_CLASS, what: str = "plain value") -> None:
        super().__init__(file)
        self._find = find
        self._what = what

    def find_class(self, module: str, name: str) -> Any:
        found = self._find(module, name)
        if found is None:
            raise pickle.UnpicklingError(f"{module}.{name} is no {self._what}")
        return found


def dumps(value: object) -> bytes:
    """One value, for `loads`."""
    written = io.BytesIO()
    Pickler(written, protocol=5).dump(value)
    return written.getvalue()


def loads(data: bytes, find: FindClass = _NO_CLASS, what: str = "plain value") -> Any:
    """The one value that fills `data`; without `find`, one of built-in types. Raises as `Unpickler` does."""
    file = io.BytesIO(data)
    value = Unpickler(file, find, what).load()
    if file.tell() != len(data):
        raise pickle.UnpicklingError("there is more than one value")
    return value
