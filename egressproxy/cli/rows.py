"""Rows of a Kubernetes Table in aligned columns, in colour on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from egressproxy.cli.styled_lines import printable

_GAP: Final = "   "
_COLOURS: Final = {"True": "green", "False": "red", "Warning": "yellow"}


class Rows:
    """Prints rows below one head; later rows keep the column widths of the first ones."""

    def __init__(
        self, definitions: Sequence[Mapping[str, Any]], is_wide: bool, has_namespaces: bool, prefix: str
    ) -> None:
        """`definitions` are the Table's columns; `is_wide` shows those with a priority, too; `prefix` is put before
        each name.
        """
        self._shown = [index for index, each in enumerate(definitions) if is_wide or not each["priority"]]
        self._name = next((index for index, each in enumerate(definitions) if each["name"] == "Name"), None)
        self._prefix = prefix
        self._has_namespaces = has_namespaces
        names = [definitions[index]["name"].upper() for index in self._shown]
        self._head = ["NAMESPACE", *names] if has_namespaces else names
        self._widths: list[int] = []

    def show(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Print these rows of the Table, and the head before the first."""
        if not rows:
            return
        texts = [self._texts(row) for row in rows]
        if not self._widths:
            columns = zip(self._head, *texts, strict=True)
            self._widths = [max(map(len, column)) for column in columns]
            self._print(self._head, {})
        for each in texts:
            self._print(each, _COLOURS)

    def _texts(self, row: Mapping[str, Any]) -> list[str]:
        cells = row["cells"]
        texts = [f"{self._prefix if index == self._name else ''}{cells[index]}" for index in self._shown]
        texts = [printable(text) for text in texts]
        return [row["object"]["metadata"].get("namespace", ""), *texts] if self._has_namespaces else texts

    def _print(self, texts: Sequence[str], colours: Mapping[str, str]) -> None:
        padded = [text.ljust(width) for text, width in zip(texts, self._widths, strict=True)]
        padded[-1] = texts[-1]
        if sys.stdout.isatty():
            click.echo(_GAP.join(click.style(each, fg=colours.get(each.rstrip())) for each in padded))
        else:
            click.echo(_GAP.join(padded).rstrip())
