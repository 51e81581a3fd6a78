"""Expressions mean the same in every Python that we run on: no possessive group, no atomic group.

CPython before 3.11.5 matches both wrongly (gh-106052, gh-100061, gh-101955): `(?:ab?c)*+` matches "a". A possessive
repetition of one character or one class is another opcode, and right everywhere.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import re._compiler as compiler
import re._constants as opcodes
import re._parser as parser
from collections.abc import Iterator
from pathlib import Path

import pytest

import egressproxy
from egressproxy.model.fields import every_spelling, finder
from egressproxy.protocols.http1.codec import RequestReader, ResponseReader
from egressproxy.protocols.http1.framing import HeadLimits

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("egressproxy", "benchmarks", "config", "docs")
SOURCES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]

_CLASS = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)
#: A closing parenthesis that no backslash takes, a quantifier, and the plus that makes it possessive; or "(?>".
_GROUP = re.compile(r"(?<!\\)\)(?:[*+?]|\{[^{}]*\})\+|\(\?>(?!…)")


def group_in_text(text: str) -> bool:
    """Whether a possessive or atomic group is written here, which may be a piece of an expression."""
    return _GROUP.search(_CLASS.sub("c", text)) is not None


def group_in_pattern(pattern: re.Pattern[str] | re.Pattern[bytes]) -> bool:
    """The same of an expression as a whole."""

    def found(node: object) -> bool:
        if isinstance(node, tuple) and len(node) == 2:
            op, argument = node
            if op is opcodes.ATOMIC_GROUP:
                return True
            if op is opcodes.POSSESSIVE_REPEAT and not compiler._simple(argument[2]):
                return True
        return isinstance(node, (tuple, list, parser.SubPattern)) and any(found(each) for each in node)

    return found(parser.parse(pattern.pattern, pattern.flags))


def literals(path: Path) -> Iterator[tuple[int, str]]:
    """Every text and every bytes literal of a file that may be an expression: no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    words = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in words:
            if isinstance(node.value, str):
                yield node.lineno, node.value
            elif isinstance(node.value, bytes):
                yield node.lineno, node.value.decode("latin-1")


def patterns() -> Iterator[tuple[str, re.Pattern[str] | re.Pattern[bytes]]]:
    """What the modules hold, and what the codec makes for its limits."""
    for module in pkgutil.walk_packages(egressproxy.__path__, "egressproxy."):
        if module.name.endswith("__main__"):
            continue
        try:
            held = vars(importlib.import_module(module.name))
        except ModuleNotFoundError as error:
            if error.name != "kubernetes":  # an extra, which the smoke tests do without
                raise
            continue
        for name, value in held.items():
            if isinstance(value, re.Pattern):
                yield f"{module.name}.{name}", value
    for reader in (RequestReader(HeadLimits()), ResponseReader(HeadLimits())):
        grammar = reader._grammar
        for match in (grammar.match_start_line, grammar._plain, grammar._whole):
            yield f"{type(reader).__name__}", match.__self__  # type: ignore[attr-defined]
    yield "finder", finder(b"a")
    yield "every_spelling", every_spelling(("a-b",))


def test_no_source_writes_a_possessive_or_atomic_group():
    assert len(SOURCES) > 250
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text!r}"
        for path in SOURCES
        if path != Path(__file__)
        for line, text in literals(path)
        if group_in_text(text)
    ]
    assert not found, "write it without: " + "\n".join(found)


def test_no_pattern_holds_a_possessive_or_atomic_group():
    all_of_them = list(patterns())
    assert len(all_of_them) > 50
    assert not [f"{name}: {pattern.pattern!r}" for name, pattern in all_of_them if group_in_pattern(pattern)]


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        (r"(?:ab)*+", True), (r"(a|b)++", True), (r"(?:[)]a)?+", True), (r"(?:ab){0,%d}+", True), (r"(?>a)", True),
        (r"a(?:b(?:cc)++d)*", True),
        (r"[a-z]*+", False), (r"a{1,16}+", False), (r"\)?+", False), (r"[()*+,;]", False), (r"(?:a++)*", False),
        (r"[^)*+]++", False), (r"(?:a)+", False),
    ],
)  # fmt: skip
def test_a_group_is_told_from_a_class(text: str, is_found: bool):
    assert group_in_text(text) is is_found
    assert group_in_pattern(re.compile(text.replace("%d", "9"))) is is_found


@pytest.mark.parametrize("pattern", [r"[0-9a-f]{1,16}+x", r"a?+b", r"[ \t]*+=[ \t]*+", r"[^,(]++,"])
def test_what_is_possessive_in_one_character_is_what_it_is_anywhere(pattern: str):
    """The forms that are left, beside the same without the plus: they accept what has nothing to give back."""
    plain = re.compile(re.sub(r"([*+?}])\+", r"\1", pattern))
    possessive = re.compile(pattern)
    for text in ("x", "0x", "f" * 16 + "x", "f" * 17 + "x", "b", "ab", "aab", "=", " \t= ", "a=", "a,", ",", "((,"):
        one, other = plain.match(text), possessive.match(text)
        assert (one and one.span()) == (other and other.span()), text
