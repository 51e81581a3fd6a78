"""What the author of a filter did wrong, as a sentence: it says what is wrong and what to write instead.

No sentence holds a value of a request, a config or a Secret: names of types, and names that the author's code has.
Imported where the first filter fails, or the first one of an operator is loaded.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Coroutine, Iterator
from functools import lru_cache
from json import JSONDecodeError
from pathlib import Path
from traceback import walk_tb
from types import CodeType, TracebackType
from typing import Any, Final

from egressproxy.errors import GatewayError
from egressproxy.filters.base import BodyMode, Filter, FilterContext
from egressproxy.filters.filter_trace import show_failure, shows_failures
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.model.near_names import did_you_mean

_BYTES: Final = 'write bytes, such as b"x-team", or text.encode()'
_PAIRS: Final = 'whose fields are not pairs of bytes: write ((b"content-type", b"text/plain"),)'
#: What to return, by the last word of a method's name.
_RESULTS: Final = {
    "body": "return the bytes that go on",
    "trailers": "change `fields` in place, and return nothing",
    "headers": "return nothing to let the exchange go on, or a LocalResponse",
}
#: Errors of Python whose text has nothing but names of types and of the code.
_QUOTABLE: Final = re.compile(
    r"""'\w+'\ object\ (?:is\ not\ (?:subscriptable|callable|iterable|an\ iterator|a\ mapping)
                         |does\ not\ support\ item\ (?:assignment|deletion))
    | 'async\ for'\ requires\ an\ object.*
    | object\ \w+\ can't\ be\ used\ in\ 'await'\ expression
    | a\ bytes-like\ object\ is\ required,\ not\ '\w+'
    | cannot\ use\ a\ (?:string|bytes)\ pattern\ on\ a\ (?:bytes|string)-like\ object
    | can't\ concat\ \w+\ to\ \w+
    | can\ only\ concatenate\ \w+\ \(not\ "\w+"\)\ to\ \w+
    | must\ be\ str\ or\ bytes,\ not\ \w+
    | [\w.<>]+\(\)\ (?:takes\ .{1,60}\ but\ \d+\ (?:was|were)\ given|missing\ \d+\ required\ [\w ,:'-]{1,200})
    | unsupported\ operand\ type\(s\)\ for\ [^ ]{1,9}:\ '\w+'\ and\ '\w+'
    | '\S{1,2}'\ not\ supported\ between\ instances\ of\ '\w+'\ and\ '\w+'
    | exceptions\ must\ derive\ from\ BaseException
    | \w+\ object\ expected;\ got\ \w+
    | the\ JSON\ object\ must\ be\ str,\ bytes\ or\ bytearray,\ not\ \w+
    | Object\ of\ type\ \w+\ is\ not\ JSON\ serializable""",
    re.VERBOSE,
)
_NOT_SET: Final = re.compile(
    r"(?:property|attribute) '(?P<name>\w+)' of '(?P<owner>\w+)' objects? (?:has no setter|is not writable)"
    r"|'?(?P<owner_>\w+)'? object(?: has no attribute| attribute) '(?P<name_>\w+)'.*"
)
#: The remedies of these errors, by words of their text.
_HINTS: Final = {
    "exceptions must": ": write `raise Rejected(…)`, or `return LocalResponse(…)`",
    "'Fields' object": ': write fields.get(b"x-team"), fields.set(b"x-team", b"…") or `for name, value in fields`',
    "is not subscriptable": ": write its attribute, as in `config.name`",
    "bytes": f": bodies and fields are bytes; {_BYTES}",
}
#: What people look for, and where it is.
_ELSEWHERE: Final = {
    (Exchange, "headers"): "write x.request.fields or x.response.fields",
    (Exchange, "fields"): "write x.request.fields or x.response.fields",
    (Exchange, "url"): "write x.authority.host, x.request.path (with the query) or x.path",
    (Exchange, "host"): "write x.authority.host",
    (Exchange, "status_code"): "write x.response.status",
    (Exchange, "body"): "request_body and response_body get the body as `data`; x.body is there in backend_request of a"
    " filter with needs_body = True",
    (Exchange, "response"): "there is none before backend_response; x.has_response says whether there is one",
    (RequestHead, "headers"): "write x.request.fields",
    (RequestHead, "url"): "write x.request.path, and x.authority.host",
    (ResponseHead, "headers"): "write x.response.fields",
    (ResponseHead, "status_code"): "write x.response.status",
    (ResponseHead, "reason"): "write x.response.phrase",
}
_OURS: Final = (Exchange, RequestHead, ResponseHead, Fields, CallerIdentity, FilterContext, LocalResponse)
#: Methods that are called without a wait.
_PLAIN: Final = frozenset((
    "__init__", "approval", "at_place", "body_mode_for", "close", "complete", "decision", "drain", "explain",
    "forecast", "held_bytes", "in_service",
))  # fmt: skip


class WrongUse(TypeError):
    """A filter has returned or made something that it must not. The text is a sentence without its subject: `method`,
    or the one that runs.
    """

    def __init__(self, text: str, method: str = "") -> None:
        super().__init__(text)
        self.method = method


def wrong_result(method: str, result: object) -> WrongUse:
    """The error of a result that this method must not return. A coroutine is closed."""
    want = _RESULTS.get(method.rpartition("_")[2], _RESULTS["headers"])
    if isinstance(result, Coroutine):
        result.close()
        return WrongUse("returned a coroutine: write `return await …`")
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        return WrongUse(f"has a `yield`: {want}")
    kind = type(result).__name__
    if isinstance(result, GatewayError) or result is GatewayError:
        return WrongUse(f"returned {kind}: write `raise {kind}(…)`")
    if method.endswith("_body"):
        if isinstance(result, LocalResponse):
            return WrongUse(
                "returned a LocalResponse when the head of the response was sent already: set body_mode ="
                " BodyMode.BUFFER"
            )
        if result is None:
            return WrongUse(f"returned None: {want} (`data` where nothing changes)")
        if isinstance(result, str):
            return WrongUse(f"returned text (str): {want}, such as text.encode()")
        if isinstance(result, bytearray | memoryview):
            return WrongUse(f"returned a {kind}: {want}, such as bytes(…)")
        if isinstance(result, dict | list):
            return WrongUse(f"returned a {kind}: {want}, such as json.dumps(…).encode()")
    return WrongUse(f"returned {_a(kind)}: {want}")


def wrong_response(response: LocalResponse) -> WrongUse | None:
    """What is wrong with the types in a filter's response; None where nothing is."""
    for name, kind in (("status", int), ("body", bytes), ("phrase", bytes)):
        value = getattr(response, name)
        if not isinstance(value, kind):
            remedy = "write a number, such as 403" if kind is int else _BYTES.replace("x-team", "not today")
            return WrongUse(f"returned a LocalResponse whose {name} is {_kind(value)}: {remedy}")
    for line in response.fields:
        if not (isinstance(line, tuple | list) and len(line) == 2 and all(isinstance(each, bytes) for each in line)):
            return WrongUse(f"returned a LocalResponse {_PAIRS}")
    return None


def wrong_mode(mode: object) -> WrongUse:
    """The error of a `body_mode_for` that returns something else than a BodyMode or None."""
    if isinstance(mode, Coroutine):
        mode.close()
        return WrongUse("is `async def`, and is called without a wait: write `def body_mode_for`", "body_mode_for")
    return WrongUse(f"returned {_kind(mode)}: return BodyMode.STREAM, BodyMode.BUFFER or None", "body_mode_for")


def how_failed(filter_: Filter, method: str, name: str, error: BaseException, kind: str) -> tuple[str, str]:
    """What happened in this method of the filter `name`, and the same with the place in the author's file: a sentence
    where the error can be explained, else its `kind`.
    """
    if isinstance(error, WrongUse) and error.method:
        method = error.method
    sentence = _explained(method, error, kind)
    where = _place(filter_, method, error, is_explained=bool(sentence))
    if sentence:
        what = f"{method} of {name} {sentence}"
        return what, f"{what} ({where})" if where else what
    return kind, f"filter {name}: {kind}{f' at {where}' if where else ''}"


def own_traceback(filter_: Filter, method: str, error: BaseException) -> TracebackType | None:
    """The traceback from the author's own file on; all of it if that is not in it, None where a sentence says all."""
    code = _code(filter_, method)
    found = error.__traceback__
    while found is not None and (code is None or found.tb_frame.f_code.co_filename != code.co_filename):
        found = found.tb_next
    return found or (None if isinstance(error, WrongUse) else error.__traceback__)


def explanation(error: BaseException) -> str:
    """What this error of the author's code says, without any value; "" where it cannot be told."""
    text = str(error.args[0]) if error.args and isinstance(error.args[0], str) else ""
    if isinstance(error, WrongUse):
        return text
    frames = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    if any(each.endswith("egressproxy/model/fields.py") for each in frames[1:]):
        if isinstance(error, TypeError | AttributeError):
            return f"gave a field text (str): names and values of fields are bytes; {_BYTES}"
        if isinstance(error, ValueError):
            return "set a field whose name or value no field can have, such as one with a line break"
    if frames and frames[-1].endswith("egressproxy/model/local_response.py"):
        return f"made a LocalResponse {_PAIRS}"
    if isinstance(error, AttributeError) and (said := _missing(error, text)):
        return said
    if isinstance(error, TypeError) and _QUOTABLE.fullmatch(text):
        hint = next((hint for words, hint in _HINTS.items() if words in text), "")
        return f"failed (TypeError: {text}){hint}"
    if isinstance(error, JSONDecodeError):
        return "read what is not JSON, or a piece of a body: with body_mode = BodyMode.BUFFER it is whole"
    if isinstance(error, NameError) and _is_in_code(error, name := error.name or ""):
        return f"uses the name `{name}`, which is not defined"
    return ""


def built_wrongly(error: BaseException, where: str, what: str, is_built: str) -> str:
    """What failed in `what`, or while something `is_built`, at this place. The author's code has seen secrets: the text
    of the error is repeated only where it has no value, or where failures are shown.
    """
    said, kind = explanation(error), type(error).__name__
    if shows_failures():
        show_failure(f"{where}{what} failed", error, error.__traceback__)
        kind = f"{kind} ({error})"
    return f"{where}{what} {said}" if said else f"{where}{kind} while {is_built}"


def _explained(method: str, error: BaseException, kind: str) -> str:
    if kind == "DeadlinePassed":
        return "took longer than the `timeout` of its extension"
    if isinstance(error, GatewayError):  # a sound one is a refusal
        for name, wanted in (("status", int), ("message", str), ("remedy", str), ("rule", str), ("detail", str)):
            if not isinstance(value := getattr(error, name, None), wanted):
                return f"raised {kind} with a {name} that is {_kind(value)}: {_a(wanted.__name__)} is expected"
    return explanation(error)


def _missing(error: AttributeError, text: str) -> str:
    name, owner = error.name or "", error.obj
    if not name and (found := _NOT_SET.fullmatch(text)):
        name, kind = found["name"] or found["name_"], found["owner"] or found["owner_"]
        hint = ": request_body and response_body return the bytes that go on" if name in ("body", "data") else ""
        return f"sets `{name}` of {_a(kind)}, which cannot be set{hint}" if _is_in_code(error, name) else ""
    if not _is_in_code(error, name):
        return ""
    cls: Any = type(owner)
    if owner is None:
        return f"asks None for `{name}`: fields.get(…) is None where there is no such field, and x.body mostly"
    if isinstance(owner, Coroutine):
        owner.close()
        return f"asks a coroutine for `{name}`: write `await` before the call that made it"
    if not isinstance(owner, _OURS):
        near = did_you_mean(name, getattr(cls, "model_fields", ()), "")  # of a Config
        return f"asks {_a(cls.__name__)} for `{name}`, which it does not have{f': {near}' if near else ''}"
    return f"asks {_a(cls.__name__)} for `{name}`, which it does not have: {_hint(cls, name)}"


@lru_cache(maxsize=64)
def _hint(cls: type[object], name: str) -> str:
    """Cached: the search takes milliseconds, and each request may fail alike."""
    known = [each for each in dir(cls) if not each.startswith("_")]
    return _ELSEWHERE.get((cls, name)) or did_you_mean(name, known, "see docs/filter-api.md")


def _is_in_code(error: BaseException, name: str) -> bool:
    """Whether this name stands in the code that failed: others may be made of a request."""
    return any(name in frame.f_code.co_names for frame, _ in walk_tb(error.__traceback__))


def _place(filter_: Filter, method: str, error: BaseException, *, is_explained: bool) -> str:
    """`FILE:LINE` of the last frame in the filter's own file, else of its method or the last frame."""
    code = _code(filter_, method)
    places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    own = [place for place in places if code is not None and place[0] == code.co_filename]
    if own:
        places = own
    elif is_explained and code is not None:
        places = [(code.co_filename, code.co_firstlineno)]
    if not places:
        return ""
    file, line = places[-1]
    return f"{os.path.basename(file)}:{line}"


def _code(filter_: Filter, method: str) -> CodeType | None:
    return getattr(inspect.unwrap(getattr(filter_, method)), "__code__", None)


def class_problems(cls: type[Filter], made: Filter | None = None) -> Iterator[tuple[int | None, str]]:
    """What is wrong with the methods of this class, each with the line of the method; of its attributes, with None.
    `made`: the filter, once it is built.
    """
    for name, base in vars(Filter).items():
        method = getattr(cls, name)
        if not inspect.isfunction(base) or method is base or (name.startswith("_") and name != "__init__"):
            continue
        if name != "__init__" or method is not object.__init__:
            yield from _method_problems(cls, name, base)
    if "__init__" not in vars(Filter) and cls.__init__ is not object.__init__:
        yield from _method_problems(cls, "__init__", _init)
    if made is not None:
        if not (made.body_mode is None or isinstance(made.body_mode, BodyMode)):
            yield None, f"body_mode is {_kind(made.body_mode)}: write BodyMode.STREAM or BodyMode.BUFFER"
        for name in ("max_buffer_bytes", "max_answer_bytes"):
            if type(value := getattr(made, name)) is not int:
                yield None, f"{name} is {_kind(value)}: write a number of bytes, such as 1024 * 1024"


def _init(self: Any, context: FilterContext) -> None:
    """What `__init__` of a filter is like."""


def _method_problems(cls: type[Filter], name: str, base: Any) -> Iterator[tuple[int | None, str]]:
    raw = inspect.getattr_static(cls, name)
    is_static = isinstance(raw, staticmethod | classmethod) or not hasattr(type(raw), "__get__")
    method = inspect.unwrap(getattr(cls, name))
    line = getattr(getattr(method, "__code__", None), "co_firstlineno", None)
    if name in _PLAIN and inspect.iscoroutinefunction(method):
        yield line, f"`{name}` is `async def`, and is called without a wait: write `def {name}`"
    elif inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        want = _RESULTS.get(name.rpartition("_")[2], _RESULTS["headers"])
        yield line, f"`{name}` has a `yield`: {want}"
    wanted = ["x" if each == "exchange" else each for each in inspect.signature(base).parameters]
    try:
        inspect.signature(getattr(cls, name)).bind(*wanted[is_static:])
    except TypeError:
        yield line, f"`{name}` is called with ({', '.join(wanted[1:])}): write def {name}({', '.join(wanted)})"
    except ValueError:
        pass  # no signature is known


def line_of(path: Path, pattern: str) -> int | None:
    """The line of this file that this pattern matches at its beginning."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return next((number for number, line in enumerate(file, 1) if re.match(pattern, line)), None)


def _kind(value: object) -> str:
    return "text (str)" if isinstance(value, str) else "None" if value is None else _a(type(value).__name__)


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}" if noun not in ("None", "bytes") else noun
