"""The attributes of objects whose class has slots, whether Python runs it or it was compiled."""

from __future__ import annotations

from inspect import isgetsetdescriptor, ismemberdescriptor


def attributes(one: object) -> dict[str, object]:
    """By name, those that are set."""
    names = [
        name
        for each in reversed(type(one).__mro__[:-1])
        for name, found in vars(each).items()
        if ismemberdescriptor(found) or (isgetsetdescriptor(found) and not name.startswith("__"))
    ]
    return {name: getattr(one, name) for name in names if hasattr(one, name)}
