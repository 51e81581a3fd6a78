"""Tables of states, as the docstrings of modules have them, and a check that nothing else happens.

A table has a line for each step: state, event, next state. `check` has every step of a class looked up in one, in all
tests of this process: a step that is in no table fails the test in which it happens, even where the error is swallowed.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from egressproxy.model.states import state_name

Table = dict[tuple[str, str], str]

#: Steps that were taken and are in no table; the hook in tests/conftest.py takes them out.
ILLEGAL: list[str] = []

_ROOT = Path(__file__).parents[2]
_HEADER = re.compile(r" +state +event +next\b")
_STEP = re.compile(r" {4}([A-Z_]+) +(\w+) +([A-Z_]+)(?: |$)")


def tables(module: ModuleType) -> list[Table]:
    """The tables in the docstring of this module, in order."""
    found: list[Table] = []
    source = _ROOT / f"{module.__name__.replace('.', '/')}.py"  # a module that was compiled has no docstring
    for line in (ast.get_docstring(ast.parse(source.read_text()), clean=False) or "").splitlines():
        if _HEADER.match(line):
            found.append({})
        elif match := _STEP.match(line):
            state, event, following = match.groups()
            assert (state, event) not in found[-1], line
            found[-1][state, event] = following
    return found


class _Checked:
    """In place of the slot `_state`."""

    def __init__(self, slot: Any, names: object, table: Table) -> None:
        self._slot = slot
        self._names = names
        self._steps = {(state, following) for (state, _), following in table.items()}

    def __get__(self, one: Any, owner: type) -> Any:
        return self if one is None else self._slot.__get__(one, owner)

    def __set__(self, one: Any, state: Any) -> None:
        try:
            before = self._slot.__get__(one, type(one))
        except AttributeError:
            before = state  # the first
        if before != state:
            step = state_name(self._names, before), state_name(self._names, state)
            if step not in self._steps:
                ILLEGAL.append(f"{type(one).__name__}: {' -> '.join(step)}")
                raise AssertionError(ILLEGAL[-1])
        self._slot.__set__(one, state)


def check(owner: type, names: object, table: Table) -> None:
    """From now on every step of this class has to be in the table."""
    slot = owner.__dict__["_state"]
    if not isinstance(slot, _Checked):
        owner._state = _Checked(slot, names, table)  # type: ignore[attr-defined]
