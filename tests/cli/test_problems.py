from __future__ import annotations

import io
from dataclasses import replace

from egressproxy.cli.problems import show_findings, show_problems
from egressproxy.config.reading.problems import Problem, Severity

PROBLEM = Problem(
    "a[b].yaml", 3, 5, "Gateway default/gw", "spec.listeners[0].port", "99999 is more than 65535", "write less"
)


WARNING = Problem("a.yaml", 0, 0, "", "", "look [here]", "or there", Severity.WARNING)
FINDINGS = [WARNING, replace(WARNING, severity=Severity.UNSERVED), replace(WARNING, severity=Severity.NOTE)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_off_a_terminal_it_is_plain_text():
    out = io.StringIO()
    show_problems([PROBLEM], out)
    show_findings(FINDINGS, out)
    assert out.getvalue() == "".join(
        (f"{PROBLEM}\n", *(f"{word}: a.yaml: look [here] (or there)\n" for word in ("warning", "unserved", "note")))
    )


def test_on_a_terminal_the_same_words_are_coloured_and_brackets_stay():
    out = Terminal()
    show_problems([PROBLEM], out)
    show_findings(FINDINGS, out)
    text = out.getvalue()
    for part in (
        "a[b].yaml:3:5",
        "spec.listeners[0].port",
        "99999 is more than 65535",
        "(write less)",
        "look [here]",
        "unserved: ",
    ):
        assert part in text


def test_a_control_character_does_not_reach_the_terminal():
    out = Terminal()
    named = replace(
        PROBLEM, object="Gateway default/g\x1b[2J\nw", message="no \x9b2J \u202e", remedy="\x1b]0;title\x07"
    )
    show_problems([named], out)
    show_findings([replace(named, severity=Severity.NOTE)], out)
    text = out.getvalue()
    assert text.count("\n") == 2
    assert "g?[2J?w" in text
    assert not any(bad in text for bad in ("\x1b[2J", "\x1b]", "\x9b", "\x07", "\u202e"))
