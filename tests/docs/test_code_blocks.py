"""Commands in the documentation exist with the options that they show, and its data formats parse.

Of the blocks of YAML tests/test_examples.py takes those that are whole, of Python tests/filters/test_public_surface.py.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from egressproxy.cli.main import main
from egressproxy.cli.new_filter import new

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "deploy").rglob("*.md"))]
_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
#: A command of ours: at the start, behind a prompt, variables or another command; no line of a table.
_COMMAND = re.compile(
    r"(?:^|[;|&(] ?|-- )(?:\$ )?(?:sudo )?(?:\w+=\S+ +)*(?:exec )?(?:\S*/?python3? -m )?(?:\S*/)?"
    r"egressproxy (?![a-z-]+ {2,}[a-z])([a-z].*)"
)
_ENDS = re.compile(r"^(?:[|;&()<]+|\d?>+|>+&\d)$")
_SHELL = {"", "sh", "console", "bash"}


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """The language of each block ("" where it names none), and its text."""
    text = page.read_text(encoding="utf-8")
    yield from ((language, block) for _, language, block in _FENCED.findall(text))
    yield from (("", block) for block in _INDENTED.findall(_FENCED.sub("", text)))


def commands(page: Path) -> Iterator[str]:
    """What stands behind `egressproxy` in each command of the page."""
    for language, block in blocks(page):
        if language in _SHELL:
            for line in block.replace("\\\n", " ").splitlines():
                yield from _COMMAND.findall(line.strip())


def words(command: str) -> list[str]:
    """The words of a command, up to its end: an operator of the shell, or a comment."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[str] = []
    try:
        for word in lexer:
            if _ENDS.match(word):
                break
            found.append(word)
    except ValueError:  # a quotation that goes on in the next line, such as that of an eval
        pass
    return found


def problem(command: str) -> str:
    """What click says of these words; "" where it takes them."""
    left, within = words(command), main
    context = click.Context(main, info_name="egressproxy", **main.context_settings)  # click keeps what it derives
    while True:
        try:
            _, left, _ = within.make_parser(context).parse_args(left)
            if not isinstance(within, click.Group) or not left:
                return ""
            name, found, left = within.resolve_command(context, left)
        except click.UsageError as error:
            return error.format_message()
        assert found is not None
        if (name, left[:1]) == ("filters", ["new"]):  # which is no command of a group
            found, left = new, left[1:]
        context, within = click.Context(found, info_name=name, parent=context), found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_exists_with_the_options_that_are_shown(page: Path):
    assert {each: told for each in commands(page) if (told := problem(each))} == {}


def test_a_wrong_option_and_a_wrong_verb_would_be_found():
    assert problem("run --confg policies/ -- pytest --no-such").startswith("No such option")
    assert problem("explian GET http://a.example/").startswith("No such command 'explian'")
    assert problem("ca init folder --permit a.example > out 2>&1 && egressproxy x") == ""


def test_commands_are_found_where_they_stand():
    found = {page.name: len(list(commands(page))) for page in PAGES}
    assert found["start.md"] >= 3
    assert found["cli.md"] >= 20
    assert sum(found.values()) >= 120


def test_every_block_of_json_toml_and_yaml_parses():
    read = {"json": json.loads, "toml": tomllib.loads, "yaml": _read_yaml}
    broken = []
    for page in PAGES:
        for language, block in blocks(page):
            try:
                read.get(language, str)(block)
            except ValueError as error:
                broken.append(f"{page.relative_to(ROOT)}: {error}: {block}")
    assert broken == []


def _read_yaml(text: str) -> None:
    try:
        list(yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
