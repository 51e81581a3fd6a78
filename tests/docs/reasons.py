"""What the gateway says with each reason, from the code: `python -m tests.docs.reasons` writes it into docs/reasons.md.

What a reason means, and what to do, is written there by hand, below a heading with the reason.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from egressproxy.errors import Reason
from egressproxy.gateway.exchange.error_responses import DENIALS, PROXY_ERRORS
from egressproxy.telemetry.access_log import FLAGS

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "reasons.md"
HEADING: Final = re.compile(r"^### `(\w+)`\n", re.MULTILINE)
_SAID: Final = re.compile(r"\nCounted by .*\n(?:\nThe gateway says:\n\n(?:\* .*\n)+)?")


def page(text: str) -> str:
    """The page with what the gateway says written anew."""
    said = messages()
    head, *parts = re.split(r"(?m)^(?=##)", text)
    made = [head]
    for part in parts:
        part = _SAID.sub("", part)
        if found := HEADING.match(part):
            lines = [f"* {_code(message)}" for message in said.get(found[1], ())]
            part = f"{part.rstrip()}\n\n{_recorded(Reason(found[1]), 'egress_connections_rejected_total' in part)}\n"
            part += ("\nThe gateway says:\n\n" + "\n".join(lines) + "\n" if lines else "") + "\n"
        made.append(part)
    return "".join(made).rstrip() + "\n"


def _recorded(reason: Reason, is_connection: bool) -> str:
    """Where a reason is counted, and the words of Envoy and of RFC 9209 for it. Connections have a metric."""
    metric = "egress_denied_total" if reason in DENIALS else "egress_request_failures_total"
    words = [f"Counted by `{'egress_connections_rejected_total' if is_connection else metric}`"]
    words += [f"flag `{FLAGS[reason]}` in the log"] if reason in FLAGS else []
    words += [f"error `{PROXY_ERRORS[reason]}` in `Proxy-Status`"] if reason in PROXY_ERRORS else []
    return "; ".join(words) + "."


def messages() -> dict[str, list[str]]:
    """The messages of each reason, and behind an arrow their remedies, with … for names and values."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "egressproxy").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for each in ast.parse(text).body if "Reason." in text else ():
            for function in each.body if isinstance(each, ast.ClassDef) else [each]:
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    for reason, message in _said_in(function):
                        found[reason].add(message)
    return {
        reason: sorted(text for text in texts if not any(each.startswith(f"{text} → ") for each in texts))
        for reason, texts in found.items()
    }


def _said_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, str]]:
    nodes = list(ast.walk(function))
    assigned = [pair for each in nodes if isinstance(each, ast.Assign) for pair in _pairs(each.targets[0], each.value)]
    for node in nodes:
        if isinstance(node, ast.Call) and (reasons := [each for each in map(_reason, node.args) if each]):
            before = [(name, value) for name, value in assigned if value.lineno < node.lineno]
            last = dict(sorted(before, key=lambda pair: pair[1].lineno))
            remedies = [text for each in node.keywords if each.arg == "remedy" for text in _texts(each.value, last)]
            for message in [text for each in node.args for text in _texts(each, last)]:
                yield reasons[0], " → ".join([message, *remedies[:1]])


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
    """The names of an assignment, each with its value."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return [pair for each in zip(target.elts, value.elts, strict=True) for pair in _pairs(*each)]
    return [(target.id, value)] if isinstance(target, ast.Name) else []


def _reason(node: ast.expr) -> str:
    is_one = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Reason"
    return Reason[node.attr].value if is_one and isinstance(node, ast.Attribute) else ""


def _texts(node: ast.expr, last: dict[str, ast.expr]) -> list[str]:
    """The texts that an expression may be, by the last assignment of a name; without those that are names alone."""
    if isinstance(node, ast.Name):
        return _texts(last[node.id], {}) if node.id in last else []
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body, last), *_texts(node.orelse, last)]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    elif isinstance(node, ast.JoinedStr):
        text = "".join(str(each.value) if isinstance(each, ast.Constant) else "…" for each in node.values)
    else:
        return []
    return [text.replace("… …", "…")] if text.count(" ") > 1 else []


def _code(text: str) -> str:
    """A code span (CommonMark 6.1)."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
