"""Conditions in CEL (Common Expression Language) about a request. `common-expression-language` evaluates them.

That library has no limit of time and cannot be interrupted. So the cost is bounded before: the length of an expression,
its loops, which are not nested, and the head that it gets. An expression also has to be fast enough on a large request
while it is built. Source of the variables: kube-agentic-networking 0.2.0; Envoy, Attributes.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from time import perf_counter
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cel import Program

#: Characters of an expression.
MAX_LENGTH: Final = 1024
#: Loops (`all`, `exists`, `map` …) of an expression.
MAX_LOOPS: Final = 4
#: Bytes of the target and the fields of a request that an expression is asked about.
MAX_HEAD: Final = 16 * 1024
#: How long an expression may take for a request of that size: the event loop waits meanwhile.
MAX_TIME_S: Final = 0.02

#: What an expression may ask for below `request`.
VARIABLES: Final = ("headers", "host", "mcp.tool_name", "method", "path", "time", "url_path")
_FUNCTIONS: Final = frozenset({
    "bool", "bytes", "contains", "double", "duration", "dyn", "endsWith", "getDate", "getDayOfMonth", "getDayOfWeek",
    "getDayOfYear", "getFullYear", "getHours", "getMilliseconds", "getMinutes", "getMonth", "getSeconds", "has", "int",
    "matches", "size", "startsWith", "string", "timestamp", "type", "uint",
})  # fmt: skip
_TEXT_OR_COMMENT: Final = re.compile(
    r"""[rR]?[bB]?[rR]?(?:\"{3}.*?\"{3}|'{3}.*?'{3})|[bB]?[rR][bB]?(?:"[^"\n]*"|'[^'\n]*')"""
    r"""|[bB]?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|//[^\n]*""",
    re.DOTALL,
)
#: What stands for a text in an expression whose texts are taken out.
_TEXT: Final = '""'
_REQUEST: Final = re.compile(r"\brequest\b(?:\s*\.\s*(\w+)(?:\s*\.\s*(\w+))?)?")
_LOOP: Final = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(\s*(?:(\w+)\s*,)?|[()]")
_MATCHES: Final = re.compile(r"\bmatches\b(\s*\(\s*\"\"\s*\))?")
_NAME: Final = re.compile(r"[A-Za-z]\w*")

_MODULE: Final = "cel.cel"
INSTALL: Final = "conditions in CEL need the package common-expression-language: pip install 'egressproxy[cel]'"


class ExpressionError(ValueError):
    """The expression cannot be used. The message says why, and what to write instead."""


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """The request of which an expression is asked. `head_size` is that of its target and fields, in bytes. `has_dots`:
    some servers see another path than the one that is written (`has_dot_segment`).
    """

    method: str
    path: str
    host: str
    headers: dict[str, str]
    head_size: int
    has_dots: bool = False

    def variable(self, name: str) -> Any:
        """The value of `request.NAME`."""
        if name == "url_path":
            return self.path.partition("?")[0]
        return datetime.now(UTC) if name == "time" else getattr(self, name)


class CelExpression:
    """A condition, which `holds` or does not. Raises ExpressionError where it cannot be used."""

    __slots__ = ("_asks", "_program", "text")

    def __init__(self, text: str) -> None:
        library = _library()
        if len(text) > MAX_LENGTH:
            raise ExpressionError(f"the expression has {len(text)} characters; at most {MAX_LENGTH} are allowed")
        self.text = text
        try:
            self._program: Program = library.compile(text)
            names, functions = self._program.variables(), self._program.functions()
        except (ValueError, RuntimeError) as error:
            raise ExpressionError(f"the expression is not CEL: {_first_line(error)}") from None
        code = _TEXT_OR_COMMENT.sub(lambda found: "" if found[0].startswith("//") else _TEXT, text)
        self._asks = _asked_for(code)
        _check_loops(code, frozenset(names))
        for name in functions:
            if _NAME.fullmatch(name) and name not in _FUNCTIONS:
                raise ExpressionError(f"the function {name} is not known; possible are {', '.join(sorted(_FUNCTIONS))}")
        if any(found[1] is None for found in _MATCHES.finditer(code)):
            raise ExpressionError(
                "what `matches` compares with has to be a text: write it as request.path.matches('a')"
            )
        self._try_out()

    def holds(self, request: AskedRequest, tool: str | None) -> bool:
        """Whether the expression is true of the request, in which this tool is called. Raises ExpressionError where
        that cannot be told: a missing field, a head that is too long, a result that is neither true nor false.
        """
        if request.head_size > MAX_HEAD and not self._asks.isdisjoint(("headers", "path", "url_path")):
            raise ExpressionError(f"the head of the request is longer than {MAX_HEAD} bytes")
        if request.has_dots and not self._asks.isdisjoint(("path", "url_path")):
            raise ExpressionError("the path has dot segments")
        result = self._evaluated(request, tool)
        if type(result) is not bool:
            raise ExpressionError(f"the expression gives {type(result).__name__}, not bool")
        return result

    def _evaluated(self, request: AskedRequest, tool: str | None) -> Any:
        asked: dict[str, Any] = {name: request.variable(name) for name in self._asks if name != "mcp"}
        if "mcp" in self._asks:
            asked["mcp"] = {} if tool is None else {"tool_name": tool}
        try:
            return self._program.execute({"request": asked})
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the library is no Exception
            raise ExpressionError(f"the expression fails: {type(error).__name__}: {_first_line(error)}") from None

    def _try_out(self) -> None:
        """Evaluate it once for a request with a head of the allowed size."""
        count, size = 128, MAX_HEAD // 2  # loops over the fields that ask for the path cost both together
        headers = {f"x-{number:03}": "v" * (size // count - 9) for number in range(count)}
        request = AskedRequest("POST", "/" + "p" * size, "host.example", headers, 0)
        left = 3
        while left:
            left -= 1
            started = perf_counter()
            try:
                result = self._evaluated(request, "tool")
            except ExpressionError as error:
                if "Undefined variable" in str(error) or "not a valid regex" in str(error):
                    raise
            else:
                if type(result) is not bool:
                    raise ExpressionError(f"the expression is no condition: it gives {type(result).__name__}, not bool")
            if perf_counter() - started <= MAX_TIME_S:
                return
        raise ExpressionError(
            f"the expression takes longer than {MAX_TIME_S * 1000:g} ms for a request with a long head"
        )


def _library() -> ModuleType:
    """The extension module of the package alone. The package would import a command line with it: 28 MB and 0.4 s in
    place of 3 MB and 0.03 s. Raises ExpressionError where it is not installed.
    """
    package = find_spec("cel")
    places = package.submodule_search_locations if package is not None else None
    spec = PathFinder.find_spec(_MODULE, places) if places is not None else None
    if spec is None or spec.loader is None:
        raise ExpressionError(INSTALL)
    found = sys.modules.get(_MODULE)
    if found is None:
        found = module_from_spec(spec)
        spec.loader.exec_module(found)
        sys.modules[_MODULE] = found
    return found


def _asked_for(code: str) -> frozenset[str]:
    """The names below `request` that the expression has. Raises ExpressionError for any other."""
    found = set()
    for match in _REQUEST.finditer(code):
        name, inner = match[1], match[2]
        whole = f"mcp.{inner}" if name == "mcp" else name
        if whole not in VARIABLES:
            possible = ", ".join(f"request.{each}" for each in VARIABLES)
            raise ExpressionError(f"request{f'.{whole}' if whole else ''} is not known; possible are {possible}")
        found.add(name)
    return frozenset(found)


def _check_loops(code: str, names: frozenset[str]) -> None:
    """Raises ExpressionError for nested loops, too many of them, and variables that are not theirs."""
    loops, depth, inside = {"request"}, 0, 0
    count = 0
    for match in _LOOP.finditer(code):
        if match[0] == ")":
            depth -= 1
            inside = 0 if depth < inside else inside
            continue
        depth += 1
        if match[0] != "(":
            count += 1
            if inside or count > MAX_LOOPS:
                raise ExpressionError(
                    f"the expression has nested loops, or over {MAX_LOOPS} of them (all, exists, map …)"
                )
            inside = depth
            loops.add(match[1] or "")
    unknown = sorted(names - loops)
    if unknown:
        raise ExpressionError(f"the variable {unknown[0]} is not known; the only one is request")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300]
