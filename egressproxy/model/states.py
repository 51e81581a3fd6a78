"""Classes of states are namespaces of numbers, not enums: before Python 3.12 a member of an enum costs 40 ns more, each
time that it is looked up on its class, and compiled code has a number as a constant.
"""

from __future__ import annotations


def state_name(states: type, state: int) -> str:
    """The name of this state, for people."""
    return next(name for name, value in vars(states).items() if name.isupper() and value == state)
