"""What the author of a filter did wrong, as a sentence that says what to write instead.

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
from traceback import walk_tb
from typing import Any, Final

from egressproxy.errors import GatewayError
from egressproxy.filters.base import BodyMode, Filter, FilterContext, Phase, Rejected
from egressproxy.filters.filter_trace import show_failure, shows_failures
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.model.near_names import did_you_mean

_BYTES: Final = 'write bytes, such as b"x-team", or text.encode()'
_RESPONSE: Final = "a LocalResponse of wrong types"
_WRITE: Final = 'write LocalResponse(403, ((b"content-type", b"text/plain"),), b"not today")'
#: What to return, by the last word of a method's name.
_RESULTS: Final = {
    "body": "return the bytes that go on",
    "for": "return BodyMode.STREAM, BodyMode.BUFFER or None",
    "trailers": "change `fields` in place, and return nothing",
    "headers": "return nothing to let the exchange go on, or a LocalResponse",
}
#: How a body method makes bytes of what it has.
_CONVERSIONS: Final = {
    "NoneType": " (`data` where nothing changes)",
    "str": ", such as text.encode()",
    "bytearray": ", such as bytes(…)",
    "dict": ", such as json.dumps(…).encode()",
}
#: Methods that may be `async def`.
_AWAITED: Final = {each.method for each in Phase} | {"request_trailers", "response_trailers"}
#: Errors of Python whose text has nothing but names of types and of the code.
_QUOTABLE: Final = re.compile(
    r"'\w+' object is not (?:subscriptable|callable|iterable)|a bytes-like object is required, not '\w+'"
    r"|can't concat \w+ to \w+|cannot use a (?:string|bytes) pattern on a (?:bytes|string)-like object"
    r"|[\w.<>]+\(\) (?:takes .{1,60} but \d+ (?:was|were) given|missing \d+ required [\w ,:'-]{1,200})"
    r"|exceptions must derive from BaseException|\w+ object expected; got \w+"  # the latter in the compiled build
)
#: The remedies of these errors, by words of their text.
_HINTS: Final = {
    "__init__() takes 1 ": ": write def __init__(self, context)",
    "exceptions must": ": write `raise Rejected(…)`, or `return LocalResponse(…)`",
    "'Fields' object": ': write fields.get(b"x-team"), fields.set(b"x-team", b"…") or `for name, value in fields`',
    "bytes": f": bodies and fields are bytes; {_BYTES}",
}
#: What people look for in an exchange or its heads, and where it is.
_ELSEWHERE: Final = {
    "headers": "write x.request.fields or x.response.fields",
    "url": "write x.authority.host, x.request.path (with the query) or x.path",
    "body": "request_body and response_body get it as `data`; backend_request has x.body with needs_body = True",
    "response": "there is none before backend_response; x.has_response says whether there is one",
}


class WrongUse(TypeError):
    """A wrong result of a filter. The text is a sentence without its subject: `method`, or the one that runs."""

    def __init__(self, text: str, method: str = "") -> None:
        super().__init__(text)
        self.method = method


def wrong_result(method: str, result: object) -> WrongUse:
    """The error of a result that this method must not return. A coroutine is closed."""
    want, kind = _result(method), type(result).__name__
    if isinstance(result, Coroutine):
        result.close()
        want = "write `return await …`"
    elif isinstance(result, GatewayError):
        want = f"write `raise {kind}(…)`"
    elif isinstance(result, LocalResponse):
        want = "the head of the response was sent already: set body_mode = BodyMode.BUFFER"
    elif method.endswith("_body"):
        want += _CONVERSIONS.get(kind, "")
    return WrongUse(f"returned {_a(kind)}: {want}", method)


def wrong_response() -> WrongUse:
    """The error of a filter's response whose status is no number, or that has text where bytes are expected."""
    return WrongUse(f"returned {_RESPONSE}: {_WRITE}")


def how_failed(filter_: Filter, method: str, name: str, error: BaseException, kind: str) -> tuple[str, str]:
    """What happened in this method of the filter `name`, and the same with the place in the author's file: a sentence
    where the error can be explained, else its `kind`. Logged in full where failures are shown.
    """
    if isinstance(error, WrongUse):
        method = error.method or method
    code = getattr(inspect.unwrap(getattr(filter_, method)), "__code__", None)
    sentence = explanation(error)
    if kind == "DeadlinePassed":
        sentence = "took longer than the `timeout` of its extension"
    elif isinstance(error, GatewayError):  # a sound one is a refusal
        sentence = f"raised {kind} with a status that is no number, or something else than text"
    places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    if code is not None:
        begin = [(code.co_filename, code.co_firstlineno)] if sentence else []
        places = [each for each in places if each[0] == code.co_filename] or begin or places
    place = f"{os.path.basename(places[-1][0])}:{places[-1][1]}" if places else ""
    what, detail = kind, f"filter {name}: {kind}{f' at {place}' if place else ''}"
    if sentence:
        what = f"{method} of {name} {sentence}"
        detail = f"{what} ({place})" if place else what
    if shows_failures():
        show_failure(detail, None if isinstance(error, WrongUse) else error)
    return what, detail


def explanation(error: BaseException) -> str:
    """What this error of the author's code says, without any value; "" where it cannot be told."""
    text = str(error.args[0]) if error.args and isinstance(error.args[0], str) else ""
    if isinstance(error, WrongUse):
        return text
    codes = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    if isinstance(error, TypeError | AttributeError) and any(
        each.co_filename.endswith("egressproxy/model/fields.py") for each in codes[1:]
    ):
        return f"gave a field text (str): names and values of fields are bytes; {_BYTES}"
    if codes and codes[-1].co_filename.endswith("egressproxy/model/local_response.py"):
        return f"made {_RESPONSE}: {_WRITE}"
    # A name that does not stand in the code that failed may be made of a request.
    if isinstance(error, NameError | AttributeError) and any(error.name in each.co_names for each in codes):
        return _missing(error)
    if isinstance(error, TypeError) and _QUOTABLE.fullmatch(text):
        return f"failed (TypeError: {text}){next((hint for words, hint in _HINTS.items() if words in text), '')}"
    if isinstance(error, JSONDecodeError):
        return "read what is not JSON, or a piece of a body: with body_mode = BodyMode.BUFFER it is whole"
    return ""


def not_built(error: BaseException, where: str, name: str) -> str:
    """Why the class `name` was not built, with the place before. The author's code has seen secrets, and the sentence
    goes into Events and status, too: the text of an error is in the log alone, where failures are shown. That of a
    refusal is meant to be seen.
    """
    if isinstance(error, Rejected):
        return f"{where}{error.message}{f' ({error.remedy})' if error.remedy else ''}"
    if shows_failures():
        show_failure(f"{where}{name} was not built", error)
    said = explanation(error)
    return f"{where}`__init__` of {name} {said}" if said else f"{where}{type(error).__name__} while {name} was built"


def _missing(error: NameError | AttributeError) -> str:
    if isinstance(error, NameError):
        return f"uses the name `{error.name}`, which is not defined"
    owner, name = error.obj, str(error.name)
    if owner is None:
        return f"asks None for `{name}`: fields.get(…) is None where there is no such field, and x.body mostly"
    if isinstance(owner, Coroutine):
        owner.close()
        return f"asks a coroutine for `{name}`: write `await` before the call that made it"
    cls: Any = type(owner)
    fields = getattr(cls, "model_fields", None)  # of a Config
    hint = did_you_mean(name, fields, "") if isinstance(fields, dict) else ""
    if cls in (Exchange, RequestHead, ResponseHead, FilterContext):
        hint = _hint(cls, name)
    return f"asks {_a(cls.__name__)} for `{name}`, which it does not have{f': {hint}' if hint else ''}"


@lru_cache(maxsize=64)
def _hint(cls: Any, name: str) -> str:
    """Cached: the search takes milliseconds, and each request may fail alike."""
    known = [each for each in dir(cls) if not each.startswith("_")]
    return _ELSEWHERE.get(name) or did_you_mean(name, known, "see docs/filter-api.md")


def problems(made: Filter) -> Iterator[tuple[int | None, str]]:
    """What is wrong with the methods of this filter, each with the line of the method; of its attributes, with None."""
    if not (made.body_mode is None or isinstance(made.body_mode, BodyMode)):
        yield None, f"body_mode is {_a(type(made.body_mode).__name__)}: write BodyMode.STREAM or BodyMode.BUFFER"
    for name, base in vars(Filter).items():
        if name.startswith("_") or not inspect.isfunction(base) or getattr(type(made), name) is base:
            continue
        method = getattr(made, name)
        function = inspect.unwrap(method)
        line = getattr(getattr(function, "__code__", None), "co_firstlineno", None)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            yield line, f"`{name}` has a `yield`: {_result(name)}"
        elif name not in _AWAITED and inspect.iscoroutinefunction(function):
            yield line, f"`{name}` is `async def`, and is called without a wait: write `def {name}`"
        wanted = ["x" if each == "exchange" else each for each in inspect.signature(base).parameters]
        try:
            inspect.signature(method).bind(*wanted[1:])
        except TypeError:
            yield line, f"`{name}` is called with ({', '.join(wanted[1:])}): write def {name}({', '.join(wanted)})"
        except ValueError:
            pass  # no signature is known


def _result(method: str) -> str:
    return _RESULTS.get(method.rpartition("_")[2], _RESULTS["headers"])


def _a(noun: str) -> str:
    return "None" if noun == "NoneType" else f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}"
