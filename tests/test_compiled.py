"""What compiled code cannot do, or does otherwise than Python: none of it stands in a module that is compiled.

`[tool.egressproxy] compiled` of pyproject.toml names them. Each rule was seen with mypyc 2.4.1, which the extra
`compile` pins; what works there is allowed. Not seen here, since it takes types: a tuple of fixed length that is
compared by `is`, and a weak reference to an object of a compiled class.
"""

from __future__ import annotations

import ast
import builtins
import re
import tomllib
from abc import ABCMeta
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.trees import every, parsed

ROOT = Path(__file__).resolve().parents[1]
COMPILED = frozenset(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["egressproxy"]["compiled"])

#: Modules that copy objects (`copy.copy`), and the module of the class that is copied, which is not compiled.
COPIED = {
    "egressproxy.ai.cache.cache": "egressproxy.ai.cache.cache",
    "egressproxy.filters.limits.redis_store": "egressproxy.filters.limits.redis_store",
    "egressproxy.kubeapi.write.managed_fields": "builtins",
    "egressproxy.kubeapi.write.patches": "builtins",
    "egressproxy.net.keyed_counters": "egressproxy.net.keyed_counters",
}

#: The builtin classes that a compiled class may have as its base (mypyc, `can_subclass_builtin`), and the decorations.
BUILTIN_BASES = {
    "object", "BaseException", "Exception", "LookupError", "IndexError", "Warning", "UserWarning", "ValueError", "dict",
}  # fmt: skip
#: A class with one of these stays a class of Python, also in a compiled module.
PYTHON_BASES = {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag", "NamedTuple", "TypedDict"}
NO_BASES = {"Generic", "Protocol", "ABC"}

Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Finding:
    module: str
    line: int
    construct: str
    instead: str

    def __str__(self) -> str:
        return f"{self.module.replace('.', '/')}.py:{self.line}: {self.construct}; {self.instead}"


# --- the modules ---------------------------------------------------------------------------------------------------
@cache
def source(module: str) -> str:
    return _path(module).read_text(encoding="utf-8")


def tree(module: str) -> ast.Module:
    return parsed(source(module))


def _path(module: str) -> Path:
    file = ROOT / f"{module.replace('.', '/')}.py"
    return file if file.is_file() else ROOT / module.replace(".", "/") / "__init__.py"


@cache
def modules() -> tuple[str, ...]:
    paths = sorted((ROOT / "egressproxy").rglob("*.py"))
    return tuple(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths)


@cache
def imported(node: ast.Module) -> dict[str, str]:
    """What each name that is imported stands for: `egressproxy.net.timers.Timer`, or a module."""
    names: dict[str, str] = {}
    for each in every(node, ast.Import):
        names.update({(alias.asname or alias.name): alias.name for alias in each.names})
    for each in every(node, ast.ImportFrom):
        if each.module:
            names.update({(alias.asname or alias.name): f"{each.module}.{alias.name}" for alias in each.names})
    return names


def said(node: ast.expr) -> str:
    """`a.b.C` of an expression, without what stands in brackets; "" for any other."""
    if isinstance(node, ast.Subscript):
        return said(node.value)
    if isinstance(node, ast.Call):
        return said(node.func)
    if isinstance(node, ast.Attribute):
        return f"{before}.{node.attr}" if (before := said(node.value)) else ""
    return node.id if isinstance(node, ast.Name) else ""


def classes(node: ast.Module) -> list[ast.ClassDef]:
    return every(node, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class Tree:
    """One module, and what of the others it takes to judge it: the names of all classes that are compiled."""

    module: str
    text: str
    native: frozenset[str]
    is_compiled: bool = True

    def whole(self, node: ast.expr) -> str:
        """The whole name of what this expression names, by the imports and classes of the module."""
        return whole(self.module, self.text, node)


@cache
def names(text: str) -> dict[str, str]:
    return imported(parsed(text))


def whole(module: str, text: str, node: ast.expr) -> str:
    name = said(node)
    first, dot, rest = name.partition(".")
    known = names(text)
    return f"{known[first]}{dot}{rest}" if first in known else f"{module}.{name}"


@cache
def bases_of_protocols() -> dict[str, tuple[str, ...]]:
    """The bases of every Protocol of the package. Nothing is made of one itself, compiled bases or not."""
    return {
        f"{module}.{each.name}": tuple(whole(module, source(module), base) for base in each.bases)
        for module in modules()
        for each in classes(tree(module))
        if any(said(base).rpartition(".")[2] == "Protocol" for base in each.bases)
    }


def native_base(base: str, native: frozenset[str]) -> str:
    """The compiled class that a class with this base has above it; "" for none."""
    if base in native:
        return base
    return next(filter(None, (native_base(each, native) for each in bases_of_protocols().get(base, ()))), "")


@cache
def native_classes(compiled: frozenset[str]) -> frozenset[str]:
    """The classes of these modules that mypyc makes its own: all but those that stay classes of Python."""
    return frozenset(
        f"{module}.{each.name}"
        for module in compiled
        for each in classes(tree(module))
        if not {said(base).rpartition(".")[2] for base in each.bases} & PYTHON_BASES
    )


@cache
def slotted(module: str) -> frozenset[str]:
    """The classes of a module, Protocols and exceptions left out, that have slots."""
    if module not in modules():
        return frozenset()
    return frozenset(
        each.name
        for each in classes(tree(module))
        if "Protocol" not in map(said, each.bases) and any(_sets_slots(member) for member in each.body)
    )


def _sets_slots(node: ast.stmt) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else ()
    return any(said(target) == "__slots__" for target in targets)


# --- the rules -----------------------------------------------------------------------------------------------------
Found = Iterator[tuple[int, str, str]]


def classes_that_fail(made: Tree, node: ast.Module) -> Found:
    """Classes that the compiler refuses, or that fail when the module is imported or used."""
    for each in classes(node):
        bases = [said(base).rpartition(".")[2] for base in each.bases]
        if "dataclass" in [said(decorator).rpartition(".")[2] for decorator in each.decorator_list] and any(
            isinstance(base, ast.Subscript) and said(base).endswith("Generic") for base in each.bases
        ):
            yield each.lineno, f"{each.name} is a Generic dataclass", "write a class with __slots__ and __init__"
        for base in bases:
            if hasattr(builtins, base) and base not in BUILTIN_BASES:
                yield each.lineno, f"{each.name} is a subclass of {base}", "leave it in a module that is not compiled"
        with_code = {made.whole(base) for base in each.bases} & made.native
        if len(with_code - bases_of_protocols().keys()) > 1:
            yield each.lineno, f"{each.name} has two bases with code", "make all but one of them Protocols"
        for base in each.bases:
            above = made.whole(base)
            if above.rpartition(".")[2] in slotted(above.rpartition(".")[0]) and above not in made.native:
                construct = f"{each.name} is a subclass of {above}, which is interpreted and has slots"
                yield each.lineno, construct, "compile both modules, or neither"
        functions = {member.name for member in each.body if isinstance(member, Function)}
        for member in each.body:
            if isinstance(member, ast.Assign) and isinstance(member.value, ast.Name) and member.value.id in functions:
                yield member.lineno, f"{member.value.id} has an alias in {each.name}", "write a method that calls it"
            if isinstance(member, ast.Assign) and "__weakref__" in ast.unparse(member):
                yield member.lineno, f"{each.name} has a slot __weakref__", "hold its objects by a number or a dict"


def deletions(made: Tree, node: ast.Module) -> Found:
    """`del` of a name where the frame outlives a call, and of an attribute anywhere."""
    deletable = "__deletable__" in made.text
    if not every(node, ast.Delete):
        return
    for each in every(node, ast.Delete) if not deletable else ():
        for target in each.targets:
            if isinstance(target, ast.Attribute):
                yield each.lineno, f"del {ast.unparse(target)}", "give the attribute a value that says it is gone"
    for each in every(node, *Function):
        pauses = isinstance(each, ast.AsyncFunctionDef) or _yields(each)
        for inner in _own(each):
            deleted = inner.targets if isinstance(inner, ast.Delete) else ()
            for parameter in (target for target in deleted if _is_parameter(each, target)):
                what = f"del {ast.unparse(parameter)}"
                if pauses:
                    yield inner.lineno, f"{what} in a coroutine or generator", "assign None"
                elif _is_read_behind(each, parameter):
                    # The parameter has no value from the start: a segmentation fault.
                    yield inner.lineno, f"{what}, which is read further below", "return before that"


def _is_parameter(function: ast.FunctionDef | ast.AsyncFunctionDef, deleted: ast.expr) -> bool:
    names = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    return isinstance(deleted, ast.Name) and deleted.id in names


def _is_read_behind(function: ast.AST, deleted: ast.expr) -> bool:
    """Whether what is deleted is read in a later line."""
    reads = (each for each in _own(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load))
    return any(ast.unparse(deleted) == each.id and each.lineno > deleted.lineno for each in reads)


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """What stands in a function, and in no function inside of it."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, (*Function, ast.Lambda, ast.ClassDef)):
            yield from _own(child)


def _yields(function: ast.AST) -> bool:
    return any(isinstance(each, ast.Yield | ast.YieldFrom) for each in _own(function))


#: Calls and attributes that compiled code does not have, and what to write.
_ABSENT_CALLS = {
    "copy.copy": "give the class a method `copy`",
    "copy.deepcopy": "give the class a method `copy`",
    "types.coroutine": "write an object with __await__ (PAUSE in net.driver)",
    "vars": "name the attributes",
    "locals": "name the variables",
}
_ABSENT_ATTRIBUTES = {"__dict__": "name the attributes", "__slots__": "name the attributes"}


def what_is_absent(made: Tree, node: ast.Module) -> Found:
    known = imported(node)
    for each in every(node, ast.Name, ast.Attribute):
        if isinstance(each, ast.Attribute) and each.attr in _ABSENT_ATTRIBUTES:
            yield each.lineno, each.attr, _ABSENT_ATTRIBUTES[each.attr]
        whole = resolved(known, said(each))
        if whole in _ABSENT_CALLS:
            yield each.lineno, whole, _ABSENT_CALLS[whole]


def resolved(known: dict[str, str], named: str) -> str:
    """A name as its module calls it."""
    first, dot, rest = named.partition(".")
    return f"{known.get(first, first)}{dot}{rest}"


def two_meanings(made: Tree, node: ast.Module) -> Found:
    """Where the checker is told one thing, and the run is another: compiled code believes what the checker was told."""
    for each in every(node, ast.If):
        if said(each.test).endswith("TYPE_CHECKING"):
            imports = [inner for inner in each.body if isinstance(inner, ast.Import | ast.ImportFrom)]
            if each.orelse or len(imports) < len(each.body):
                yield each.lineno, "TYPE_CHECKING decides more than imports", "write what is true in both"
    known = imported(node)
    for name, whole in known.items():
        if whole.startswith(("mypyc", "mypy_extensions")):
            yield 1, f"{name} is for the compiler alone", "write it so that Python means the same"
    for number, line in enumerate(made.text.split("\n"), 1):
        if re.match(r"\s*# mypy: ", line):
            yield number, "error codes are switched off for the whole module", "write types that hold"
        if re.search(r"=\s*None\s*#.*type: ignore\[assignment", line):
            yield (
                number,
                "an attribute that is None first, and is told to be none",
                "give it a value, or write Optional",
            )


def evaluated_twice(made: Tree, node: ast.Module) -> Found:
    """Bounds of slices: of what is neither list, tuple, text nor bytes, compiled code evaluates them a second time."""
    for each in every(node, ast.Slice):
        for bound in (each.lower, each.upper, each.step):
            inner = ast.walk(bound) if bound is not None else ()
            acts = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
            if any(isinstance(one, acts) and not (isinstance(one, ast.Call) and said(one) == "len") for one in inner):
                yield each.lineno, f"{ast.unparse(each)} acts in the bounds of a slice", "give the bound a name before"


def from_outside(made: Tree, node: ast.Module) -> Found:
    """What a module, compiled or not, does to a class that is compiled."""
    for each in classes(node) if not made.is_compiled else ():
        bases = [made.whole(base) for base in each.bases]
        above = next(filter(None, (native_base(base, made.native) for base in bases)), "")
        if above and "typing.Protocol" not in bases:
            construct = f"{each.name} is interpreted, and a subclass of {above}, which is compiled"
            yield each.lineno, construct, "compile both modules, or neither"
    for inner in every(node, ast.Assign):
        for target in inner.targets:
            if isinstance(target, ast.Attribute) and made.whole(target.value) in made.native:
                yield inner.lineno, f"{ast.unparse(target)} is set on the class", "set it in the class, or on an object"


def identities(made: Tree, node: ast.Module) -> Found:
    """Constants that are told apart by `is`. Compiled code takes a tuple of fixed length apart, and makes another of
    its values where one is asked for: none is the same as another.
    """
    for each in every(node, ast.Compare):
        if any(isinstance(operator, ast.Is | ast.IsNot) for operator in each.ops):
            for side in (each.left, *each.comparators):
                if said(side) and is_fixed_tuple(made.whole(side), made):
                    construct = f"{ast.unparse(side)} is a tuple of fixed length, and is compared by `is`"
                    yield each.lineno, construct, "compare with ==, or annotate it as tuple[X, ...]"


def is_fixed_tuple(name: str, made: Tree) -> bool:
    """Whether the constant of this name is one for the checker."""
    module, _, constant = name.rpartition(".")
    if module != made.module and module not in modules():
        return False
    node = parsed(made.text) if module == made.module else tree(module)
    for each in node.body:
        targets = (
            each.targets if isinstance(each, ast.Assign) else [each.target] if isinstance(each, ast.AnnAssign) else ()
        )
        if [said(target) for target in targets] == [constant] and isinstance(each.value, ast.Tuple):
            return isinstance(each, ast.Assign) or "..." not in ast.unparse(each.annotation)
    return False


def constants(made: Tree, node: ast.Module) -> Found:
    """Compiled code has what is Final at hand; every other name of a module is looked up in a dictionary each time."""
    for each in node.body:
        targets = (
            each.targets if isinstance(each, ast.Assign) else [each.target] if isinstance(each, ast.AnnAssign) else ()
        )
        names = [inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)]
        final = isinstance(each, ast.AnnAssign) and "Final" in ast.unparse(each.annotation)
        for name in names if not final and "TypeVar(" not in ast.unparse(each) else ():
            if len(name) > 1 and name.isupper():
                yield each.lineno, f"{name} is not Final", f"write {name}: Final = …"


def caught(made: Tree, node: ast.Module) -> Found:
    """The names of `except … as name` in one function: compiled code gives a name the class of its first clause where
    that is compiled, and fails where another clause catches something else under this name.
    """
    for function in every(node, *Function) if every(node, ast.ExceptHandler) else ():
        known: dict[str, set[str]] = {}
        for clause in (each for each in _own(function) if isinstance(each, ast.ExceptHandler)):
            if clause.name is None or clause.type is None:
                continue
            kinds = {made.whole(kind) for kind in _kinds(clause.type)}
            before = known.setdefault(clause.name, kinds)
            if kinds != before and (kinds | before) & made.native:
                construct = f"{clause.name} is what two clauses of {function.name} catch, one of them a compiled class"
                yield clause.lineno, construct, "give each a name of its own"


def _kinds(node: ast.expr) -> Sequence[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else (node,)


IN_COMPILED = (
    classes_that_fail, deletions, what_is_absent, two_meanings, identities, constants, caught, evaluated_twice,
    from_outside,
)  # fmt: skip


def findings(made: Tree) -> list[Finding]:
    node = parsed(made.text)
    rules = IN_COMPILED if made.is_compiled else (from_outside,)
    return [Finding(made.module, *found) for rule in rules for found in rule(made, node)]


# --- what the house says -------------------------------------------------------------------------------------------
def test_compiled_modules_hold_nothing_that_compiled_code_does_otherwise():
    native = native_classes(COMPILED)
    found = [str(each) for name in modules() for each in findings(Tree(name, source(name), native, name in COMPILED))]
    assert found == [], "\n".join(found)


def test_what_is_copied_is_not_compiled():
    copying = set()
    for name in modules():
        known = imported(tree(name))
        calls = every(tree(name), ast.Call)
        if any(resolved(known, said(each.func)) in ("copy.copy", "copy.deepcopy") for each in calls):
            copying.add(name)
    assert copying == set(COPIED), "name the module of the class that is copied in COPIED"
    assert [of for of in COPIED.values() if of in COMPILED] == [], "give the class a method `copy`"


def test_what_goes_between_processes_is_not_compiled_or_says_how():
    """pickle makes an object without its arguments, and then sets what it held: compiled classes know neither."""
    sent = set()
    for name in modules():
        for call in every(tree(name), ast.Call):
            if whole(name, source(name), call.func) == "egressproxy.processes.pickling.classes":
                named = (each for each in ast.walk(call) if isinstance(each, ast.Name))
                sent |= {whole(name, source(name), each) for each in named}
    compiled = {name for name in sent if name.rpartition(".")[0] in COMPILED}
    assert "egressproxy.telemetry.series.Series" in compiled
    assert [name for name in sorted(compiled) if not says_how(name)] == [], "give the class __reduce__ and __setstate__"


def says_how(name: str) -> bool:
    """Whether this class says what pickle makes it of."""
    module, _, kind = name.rpartition(".")
    (found,) = (each for each in classes(tree(module)) if each.name == kind)
    methods = {each.name for each in found.body if isinstance(each, ast.FunctionDef)}
    return {"__reduce__", "__setstate__"} <= methods


def test_interpreted_code_asks_for_no_compiled_class_behind_an_abstract_one():
    """Such classes share what ABCMeta remembers of their abstract base: whoever was found to be an object of one of
    them would be taken for an object of all others. Compiled code does not ask ABCMeta.
    """
    asked = []
    for name in sorted(set(modules()) - COMPILED):
        known = imported(tree(name))
        for call in every(tree(name), ast.Call):
            if said(call.func) in ("isinstance", "issubclass"):
                kinds = {known.get(each.id, "") for each in ast.walk(call.args[1]) if isinstance(each, ast.Name)}
                asked += [f"{name}:{call.lineno}: {kind}" for kind in kinds if is_abstract(kind)]
    assert asked == [], "ask in a function of the module of that class"


def is_abstract(name: str) -> bool:
    """Whether this is a class of a compiled module whose metaclass is ABCMeta."""
    module, _, kind = name.rpartition(".")
    return module in COMPILED and isinstance(getattr(import_module(module), kind), ABCMeta)


# --- that the rules see it -----------------------------------------------------------------------------------------
WHERE = "egressproxy.x"


def found_in(text: str, native: frozenset[str] = frozenset(), *, is_compiled: bool = True) -> list[str]:
    return [each.construct for each in findings(Tree(WHERE, text, native, is_compiled))]


@pytest.mark.parametrize(
    ("text", "construct"),
    [
        ("@dataclass(slots=True)\nclass A(Generic[T]):\n    a: T", "A is a Generic dataclass"),
        ("class A(ConnectionError):\n    pass", "A is a subclass of ConnectionError"),
        ("class A(Base):\n    def b(self): ...\n    c = b", "b has an alias in A"),
        ("class A:\n    __slots__ = ('a', '__weakref__')", "A has a slot __weakref__"),
        ("async def f(a):\n    del a", "del a in a coroutine or generator"),
        (
            "def f(a, b):\n    if b:\n        del a\n        return b\n    return a",
            "del a, which is read further below",
        ),
        ("def f(a):\n    yield a\n    del a", "del a in a coroutine or generator"),
        ("def f(self):\n    del self.end.other", "del self.end.other"),
        ("from copy import copy as same\nsame(1)", "copy.copy"),
        ("import copy\ncopy.copy(1)", "copy.copy"),
        ("import types\n@types.coroutine\ndef f(): yield", "types.coroutine"),
        ("def f(self): return self.__dict__", "__dict__"),
        ("A_B = 3", "A_B is not Final"),
        ("from enum import Enum\nAB, _ = Kind", "AB is not Final"),
        ("A_B: int = 3", "A_B is not Final"),
        ("A: Final = (1, 2)\ndef f(a): return a is A", "A is a tuple of fixed length, and is compared by `is`"),
        ("A: Final = (1, 2)\ndef f(a): return A is not a", "A is a tuple of fixed length, and is compared by `is`"),
        (
            "from egressproxy.net.tls import TlsStream\nclass A(TlsStream):\n    ...",
            "A is a subclass of egressproxy.net.tls.TlsStream, which is interpreted and has slots",
        ),
        ("def f(self): return vars(self)", "vars"),
        ("if TYPE_CHECKING:\n    A = B\n", "TYPE_CHECKING decides more than imports"),
        ("if TYPE_CHECKING:\n    import a\nelse:\n    a = 1", "TYPE_CHECKING decides more than imports"),
        ("def f(a):\n    return a[send(a) :]", "send(a): acts in the bounds of a slice"),
        ("from mypy_extensions import mypyc_attr", "mypyc_attr is for the compiler alone"),
        ("# mypy: disable-error-code=misc", "error codes are switched off for the whole module"),
        (
            "self.a: A = None  # type: ignore[assignment]  # set later",
            "an attribute that is None first, and is told to be none",
        ),
    ],
)
def test_a_rule_sees(text: str, construct: str):
    assert found_in(text) == [construct]


@pytest.mark.parametrize(
    "text",
    [
        "@dataclass(frozen=True, slots=True)\nclass A:\n    a: int",
        "class A(Generic[T]):\n    __slots__ = ('a',)",
        "class A(NamedTuple, Generic[T]):\n    a: T",
        "class A(ValueError):\n    pass",
        "def f(error):\n    try:\n        raise error\n    finally:\n        del error",
        "async def f(a):\n    del a[:4]",
        "async def f():\n    def g(a):\n        del a\n    g(1)",
        "async def f(b):\n    a = 1\n    await b\n    del a",
        "if TYPE_CHECKING:\n    from a import B",
        "self.a: A | None = None",
        "class A:\n    def __getattr__(self, name): ...",
        "fields.copy()",
        "_T = TypeVar('_T')\nAB: Final = 3\nAB2: Final[int] = 3\ncount = 0",
        "A: Final[tuple[int, ...]] = (1, 2)\ndef f(a): return a is A",
        "A: Final = (1, 2)\ndef f(a): return a == A",
        "def f(a, b): return a[b : b + len(a)]",
    ],
)
def test_a_rule_lets_pass_what_works(text: str):
    assert found_in(text) == []


NATIVE = frozenset((f"{WHERE}.Own", "egressproxy.net.timers.Timer"))


@pytest.mark.parametrize(
    "text",
    [
        "from egressproxy.net.timers import Timer\nclass Mine(Timer):\n    pass",
        "from egressproxy.net.timers import Timer as Other\nclass Mine(Other[int]):\n    pass",
        "from egressproxy.net import timers\nclass Mine(timers.Timer):\n    pass",
        "from egressproxy.net.timers import Timer\nclass Mine(Timer, Generic[T]):\n    pass",
    ],
)
def test_an_interpreted_subclass_is_seen_under_every_name(text: str):
    (told,) = found_in(text, NATIVE, is_compiled=False)
    assert told == "Mine is interpreted, and a subclass of egressproxy.net.timers.Timer, which is compiled"
    assert found_in(text, NATIVE) == []


def test_a_protocol_is_no_object_of_a_compiled_class():
    text = (
        "from typing import Protocol\nfrom egressproxy.net.timers import Timer\nclass Mine(Timer, Protocol):\n    pass"
    )
    assert found_in(text, NATIVE, is_compiled=False) == []


def test_an_attribute_of_a_compiled_class_that_another_module_sets_is_seen():
    text = "from egressproxy.net.timers import Timer\nTimer.limit = 3"
    assert found_in(text, NATIVE, is_compiled=False) == ["Timer.limit is set on the class"]


def test_one_name_for_two_errors_of_which_one_is_compiled_is_seen():
    text = "def f():\n    try: a()\n    except Own as error: b(error)\n    except ValueError as {}: c()"
    assert found_in(text.format("error"), NATIVE) == [
        "error is what two clauses of f catch, one of them a compiled class"
    ]
    assert found_in(text.format("other"), NATIVE) == []
    assert found_in(text.replace("Own", "KeyError").format("error"), NATIVE) == []


def test_a_finding_names_the_place_and_the_plain_form():
    (told,) = findings(Tree("egressproxy.net.x", "\nimport copy\ncopy.copy(1)", NATIVE))
    assert str(told) == "egressproxy/net/x.py:3: copy.copy; give the class a method `copy`"
