"""Regular expressions in matches of routes: RE2's syntax, which is Envoy's, and RE2's engine, which never backtracks.

A match usually costs 1 ns for each byte of the value. Where RE2 cannot cache its states, it costs up to about 5 ns for
each byte and each instruction of the compiled program (measured). The size of a program is bounded here, and `work`
says what a value may cost, so that the caller can bound the sum. Each byte is matched as one character, so that a value
need not be valid text. Source of the match type: Gateway API HTTPPathMatch, HTTPHeaderMatch, HTTPQueryParamMatch,
GRPCMethodMatch (RegularExpression is implementation-specific). Of the syntax: github.com/google/re2/wiki/Syntax.

RE2 costs a process 2.6 MB, so it is imported with the first expression of a configuration.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

#: Characters of an expression. Gateway API allows 1024 for a path, 4096 for a header value.
MAX_PATTERN = 1024
#: Instructions of the program that RE2 makes of an expression.
MAX_PROGRAM = 768
#: Bytes of a value that an expression is tried on.
MAX_SUBJECT = 2048
#: Bytes that RE2 may use for an expression: its program and cached states, of which more cost more than they save.
_MAX_MEMORY = 64 * 1024
#: The fixed cost of a try, for each byte and for the call, in instructions.
_BYTE = 64
_TRY = 300

#: Where RE2 differs from PCRE and Python: it takes these characters literally.
_OPEN_REPEAT = re.compile(r"\{,([0-9]*)\}")
#: A Unicode class: it does not match bytes, and 300 of them under (?i) take RE2 4 s to compile.
_UNICODE = re.compile(r"(?:[^\\]|\\[^pP])*\\[pP](?:\{[^}]*\}|.)?", re.DOTALL)
#: Escapes, classes, and single characters.
_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:[^\]]*:\]|[^\]\\])*\]|.", re.DOTALL)
_SPECIAL = "\\^$.*+?{}[]()|"
_REPEATS = "*?{"
#: How RE2's error begins, and what to write instead.
_REMEDIES = (
    (r"invalid perl operator: \(\?<?[=!]", "RE2 has no lookaround; write a rule of its own for the exception"),
    (r"invalid perl operator: \(\?P(?!<)|invalid escape sequence: \\[1-9gk]",
     "RE2 has no backreferences; write out the alternatives"),
    (r"invalid perl operator: \(\?>", "RE2 never backtracks, so it has no atomic groups; write (?:…)"),
    (r"bad repetition operator: ([*+?]|\{[0-9,]*\})\+\Z",
     "RE2 never backtracks, so it has no possessive repeats; write a+ instead of a++"),
    (r"invalid perl operator: \(\?#", "RE2 has no comments; leave the comment out"),
    (r"invalid perl operator: \(\?\(", "RE2 has no conditionals; write the alternatives out as (?:…|…)"),
    (r"invalid perl operator: \(\?[a-zA-Z]", "RE2 has the flags i, m, s and U; leave the flag out"),
    (r"invalid escape sequence: \\Z", r"an expression always matches the whole value; leave \Z out"),
    (r"invalid escape sequence: \\[uN]", r"expressions match bytes; write them as \xc3\xa9"),
    (r"pattern too large", f"at most {MAX_PROGRAM} instructions are allowed; write smaller repeats"),
    (r"invalid repetition size", "a repeat may count to 1000, nested repeats multiplied"),
)  # fmt: skip


class PatternError(ValueError):
    """The expression is malformed, not RE2's syntax, or too large. The message says why and what to write instead."""


class Expression:
    """`size` is the number of instructions, `text` the expression as written; what it matches begins with `start`."""

    __slots__ = ("_fullmatch", "size", "start", "text")

    def __init__(self, text: str, compiled: Any) -> None:
        self.text = text
        self.size: int = compiled.programsize
        self.start = _literal_start(text)
        self._fullmatch = compiled.fullmatch

    def work(self, value: bytes) -> int:
        """What `matches` may cost for this value, in instructions (5 ns); 0 where it cannot match."""
        return len(value) * (self.size + _BYTE) + _TRY if value.startswith(self.start) else 0

    def matches(self, value: bytes) -> bool:
        """Whether the whole value matches. The caller ensures that it has at most MAX_SUBJECT bytes."""
        return self._fullmatch(value) is not None


@lru_cache(maxsize=4096)
def compile_pattern(text: str) -> Expression:
    """Compile an expression. Raises PatternError with a message for its author."""
    if len(text) > MAX_PATTERN:
        raise PatternError(f"the expression has {len(text)} characters; at most {MAX_PATTERN} are allowed")
    if not text.isascii():
        letter = next(letter for letter in text if not letter.isascii())
        escaped = "".join(f"\\x{byte:02x}" for byte in letter.encode("utf-8", "surrogatepass"))
        raise PatternError(
            f"the expression {_shown(text)} holds {letter!r}: expressions match bytes; write (?:{escaped}) for it"
        )
    found = _OPEN_REPEAT.search(text)
    if found is not None:
        raise PatternError(
            f"the expression {_shown(text)} holds {found[0]}, which RE2 does not take for a repeat; "
            f"write {{0,{found[1]}}}, or \\{found[0]} for the characters themselves"
        )
    if _UNICODE.match(text):
        raise PatternError(
            f"the expression {_shown(text)} holds a Unicode class (\\p or \\P): expressions match bytes; "
            "write [A-Za-z], [[:alpha:]] and the like"
        )
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.max_mem = _MAX_MEMORY
    options.never_capture = True
    try:
        compiled = re2.compile(text.encode(), options)
    except re2.error as error:
        raise PatternError(_refusal(text, error.args[0])) from None
    if compiled.programsize > MAX_PROGRAM:
        raise PatternError(
            f"the expression {_shown(text)} compiles to {compiled.programsize} instructions; at most {MAX_PROGRAM} are "
            "allowed: write smaller repeats, or several matches"
        )
    return Expression(text, compiled)


def _literal_start(text: str) -> bytes:
    """The literal bytes with which a valid expression begins; b"" where that is not obvious.

    RE2's own PossibleMatchRange errs with \\b and \\xff (release 2025-11-05): it leaves out values that match.
    """
    parts = _PARTS.findall(text)
    if r"\Q" in parts:
        return b""
    depth = 0
    for part in parts:
        depth += (part == "(") - (part == ")")
        if part == "|" and not depth:
            return b""
    start = ""
    for part in parts[1:] if parts[:1] == ["^"] else parts:
        if part in _REPEATS:
            start = start[:-1]
        if len(part) == 1 and part not in _SPECIAL:
            start += part
        elif len(part) == 2 and part[0] == "\\" and not part[1].isalnum():
            start += part[1]
        else:
            break
    return start.encode()


def _shown(text: str) -> str:
    """The expression as written, so that it can be searched for; escaped where it cannot be printed."""
    return f"'{text}'" if text.isprintable() else repr(text)


def _refusal(text: str, reason: str | bytes) -> str:
    complaint = reason.decode() if isinstance(reason, bytes) else reason
    remedy = next((remedy for start, remedy in _REMEDIES if re.match(start, complaint)), "see RE2's syntax")
    return f"the expression {_shown(text)} is not valid in RE2: {complaint}; {remedy}"
