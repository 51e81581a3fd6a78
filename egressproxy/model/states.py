"""The states of a connection are numbers in a module of their own, not an enum: before Python 3.12 a member of an enum,
or of any class, costs more each time that it is looked up, and compiled code has a number as a constant.
"""

from __future__ import annotations


def state_name(states: object, state: int) -> str:
    """The name of this state, for people."""
    return next(name for name, value in vars(states).items() if name.isupper() and value == state)
