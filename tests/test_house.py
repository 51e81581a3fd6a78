"""The rules of the house that no linter knows: names, imports, references in prose, docstrings."""

from __future__ import annotations

import ast
import asyncio
import builtins
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pydantic
import pytest

from tests.support.trees import every, parsed

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "egressproxy"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def module_name(path: Path) -> str:
    """`gateway.exchange.conductor`: the name below `egressproxy`."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def tree(path: Path) -> ast.Module:
    return parsed(text_of(path))


# ---- names


def test_a_class_name_stands_for_one_thing_in_its_package():
    places = defaultdict(list)
    for path in sources("egressproxy"):
        for node in every(tree(path), ast.ClassDef):
            places[path.parent, node.name].append(module_name(path))
    assert {name: found for (_, name), found in places.items() if len(found) > 1} == {}


def test_what_repr_shows_begins_with_the_name_of_the_class():
    wrong = []
    for path in sources("egressproxy"):
        for node in every(tree(path), ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and member.name == "__repr__":
                    shown = re.findall(r"""['"](_?[A-Z]\w+)\(""", ast.unparse(member))
                    wrong += [f"{path.relative_to(ROOT)}: {node.name}: {name}" for name in shown if name != node.name]
    assert wrong == []


# ---- imports


@cache
def imports() -> dict[str, set[str]]:
    """Which module imports which, under `TYPE_CHECKING` and inside functions too."""
    modules = {module_name(path): path for path in sources("egressproxy")}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        named: set[str] = set()
        for node in every(tree(path), ast.Import):
            named |= {alias.name for alias in node.names}
        for node in every(tree(path), ast.ImportFrom):
            if node.module:
                whole = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= whole if all(each.removeprefix("egressproxy.") in modules for each in whole) else {node.module}
        short = {each.removeprefix("egressproxy.") for each in named if each.startswith("egressproxy.")}
        graph[name] = (short & set(modules)) - {name}
    return graph


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The sets of modules that reach each other."""
    reached = {name: _reach(graph, name) for name in graph}
    found = (
        frozenset({name} | {each for each in reached[name] if name in reached.get(each, ())})
        for name in graph
        if name in reached[name]
    )
    return set(found)


def _reach(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    left = list(graph[start])
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left.extend(graph[name])
    return seen


def test_no_modules_import_each_other_in_a_circle():
    found = [sorted(circle) for circle in circles(imports())]
    assert found == [], "hidden imports (TYPE_CHECKING, inside functions) count, too"


def test_a_circle_of_three_is_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert circles(graph) == {frozenset("abc")}


# ---- the path of a request

PATH_ROOMS = ("gateway", "routing", "upstream", "protocols", "net", "model", "ir", "errors")
#: Beside the path, as filters and telemetry are: snapshots and how they are swapped, requests of the gateway's own, who
#: asks, what is refused under load, certificates for clients, the settings of TLS and of telemetry, answers of DNS, and
#: how sockets are bound.
BESIDE = (
    "gateway.server", "gateway.builders", "gateway.own_calls", "gateway.identity", "gateway.overload",
    "gateway.leaf_certificates", "gateway.backends.health_checks", "net.tls_contexts", "protocols.websocket",
    "gateway.exchange.message_relay", "gateway.exchange.message_exchange", "gateway.exchange.websocket_end",
    "ir.telemetry",
    "gateway.listeners.name_server", "gateway.listeners.name_decision", "gateway.listeners.dns_transports",
    "protocols.dns", "ir.name_server", "model.listening_place", "net.listening",
)  # fmt: skip
PATH_LINES = 36_000


def rooms_of_the_path() -> list[str]:
    """The modules of the rooms that a request passes."""
    names = map(module_name, sources("egressproxy"))
    return [
        name
        for name in names
        if name.partition(".")[0] in PATH_ROOMS and not f"{name}.".startswith(tuple(f"{room}." for room in BESIDE))
    ]


def test_the_path_of_a_request_is_as_short_as_the_readme_says():
    assert [room for room in BESIDE if not leads_somewhere(room)] == []
    modules = {module_name(path): path for path in sources("egressproxy")}
    found = rooms_of_the_path()
    assert "gateway.exchange.pipeline" in found
    lines = sum(len(text_of(modules[name]).splitlines()) for name in found)
    assert lines <= PATH_LINES
    assert f"The path of a request is {-(-lines // 1000)},000 lines" in (ROOT / "README.md").read_text()


# ---- references in docstrings and comments

#: Rooms that were renamed or divided: a path that begins with one of them leads nowhere.
FORMER_ROOMS = (
    "transport", "loading", "workers", "explaining", "authorization", "writes", "spec", "ai_apis", "translation",
    "ext_proc_server",
)  # fmt: skip

ROOMS = {*FORMER_ROOMS, *(path.name for path in PACKAGE.iterdir() if path.is_dir())}
#: `gateway/exchange/connection_manager`, `net.loop.new_loop`, if its first part is a room; not `gateway.example.com/x`.
_REFERENCE = re.compile(r"(?<![\w/.\-:<])(?:egressproxy[./])?([a-z]+(?:[./][A-Za-z_]\w*)+)(?![\w/\-:<>]|\.\w)")
_DOCUMENT = re.compile(r"(?<![\w/.*{-])([\w./-]+\.md)\b")
#: Fields of manifests (`spec.rules`), file names of examples, what Envoy's API is called, and names of objects.
_NOT_OURS = re.compile(
    r"spec\.|\w+\.(?:yaml|md|json|crt|key|example|local|test|io)\b"
    r"|config/(?:samples|core|filters|gateway_api_fields)\b|identity\.(?:certificate|token|basic|address|gateways|required|proxyProtocol)\b"
    r"|gateway[./](?:listener|section|egress|networking)\b"
    r"|envoy[./](?:service|config|type|extensions|api)\b"
)
_ELSEWHERE = {"DATE.md", "proposals/10-egress-gateways.md"}


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a Python file, the lines of any other, each with the number of its line."""
    if path.suffix != ".py":
        yield from enumerate(text_of(path).splitlines(), 1)
        return
    for node in every(tree(path), ast.Expr):
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for line, code in enumerate(text_of(path).splitlines(), 1):
        if (comment := re.search(r"(?:^|\s)#[ :].*", code)) is not None:
            yield line, comment[0]


def wrong_names(pattern: re.Pattern[str], paths: list[Path], is_wrong: Callable[[str], bool]) -> list[str]:
    """The wrong names in the prose of these files, with their places.

    A name is what the group of the pattern that took part has matched. A file is taken apart only where its whole text
    has a wrong name.
    """

    def wrong_in(text: str) -> list[str]:
        names = [match[match.lastindex or 0] for match in pattern.finditer(text)]
        return [name for name in names if is_wrong(name)]

    return [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in paths
        if path != Path(__file__) and wrong_in(text_of(path))
        for line, text in prose(path)
        for name in wrong_in(text)
    ]


@cache
def leads_somewhere(reference: str) -> bool:
    """Whether `room/module` or `room.module.name` is there: the path, and the name in the module."""
    place = PACKAGE
    parts = re.split(r"[./]", reference.removesuffix(".py"))
    for index, part in enumerate(parts):
        if (place / part).is_dir():
            place /= part
        elif (place / f"{part}.py").is_file():
            return _defines(place / f"{part}.py", parts[index + 1 :])
        else:  # what a package's own file defines, or its outer directory's: `gateway.HttpConnectionManager`
            return _defines(place / "__init__.py", parts[index:])
    return True


def _defines(path: Path, names: list[str]) -> bool:
    if not names:
        return True
    return re.search(rf"^(?:class |(?:async )?def )?{names[0]}\b", text_of(path), re.M) is not None


PROSE = [*sources("egressproxy", "tests", "benchmarks"), ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]


def test_every_module_that_is_named_is_there():
    def is_wrong(reference: str) -> bool:
        in_a_room = re.split(r"[./]", reference)[0] in ROOMS and not _NOT_OURS.match(reference)
        return in_a_room and not leads_somewhere(reference)

    assert wrong_names(_REFERENCE, PROSE, is_wrong) == []


def test_every_document_that_is_named_is_there():
    pages = {path.name for folder in (ROOT, ROOT / "docs", PACKAGE / "config") for path in folder.glob("*.md")}

    def is_wrong(name: str) -> bool:
        return name not in _ELSEWHERE | pages and not any((folder / name).is_file() for folder in (ROOT, PACKAGE))

    assert wrong_names(_DOCUMENT, PROSE, is_wrong) == []


def test_the_map_of_the_architecture_has_every_room_and_no_other():
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = page.partition("| room | what it holds |")[2].partition("\n\n")[0]
    rooms = re.findall(r"^\| `([\w/]+)` \|", table, re.M)
    assert [room for room in rooms if not leads_somewhere(room.rstrip("/"))] == []
    modules = [path.relative_to(PACKAGE).with_suffix("").parts for path in sources("egressproxy")]
    there = {parts[0] for parts in modules if parts[0][0] != "_"}
    there |= {f"gateway/{parts[1]}" for parts in modules if parts[0] == "gateway" and len(parts) > 2}
    assert there <= {room.rstrip("/") for room in rooms} | {room.partition("/")[0] for room in rooms}


def test_imports_point_down_the_map_of_the_architecture():
    """The files of `processes/`, `envoy/`, `gateway/` and `config/` stand between their rooms: they are left out."""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = page.partition("| room | what it holds |")[2].partition("\n\n")[0]
    rooms = [room.rstrip("/").replace("/", ".") for room in re.findall(r"^\| `([\w/]+)` \|", table, re.M)]
    divided = {room.rpartition(".")[0] for room in rooms} & set(rooms)

    def row(module: str) -> int | None:
        found = [room for room in rooms if f"{module}.".startswith(f"{room}.")]
        return None if not found or (room := max(found, key=len)) in divided else rooms.index(room)

    placed = [(module, row(module), other, row(other)) for module, named in imports().items() for other in named]
    up = {
        f"egressproxy.{module} -> egressproxy.{other}"
        for module, above, other, below in placed
        if above is not None and below is not None and below < above
    }
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert up <= set(contracts[0]["ignore_imports"])


#: A class in backticks, or what a docstring says is raised.
_CLASS = re.compile(r"`([A-Z][a-z0-9]+[A-Z]\w*)\b|\bRaises ([A-Z]\w+)")


def test_every_class_that_is_named_is_there():
    known = set(dir(builtins))
    for path in sources("egressproxy"):
        for node in every(tree(path), ast.ClassDef, ast.Name, ast.Attribute, ast.alias, ast.Constant):
            match node:
                case ast.ClassDef(name=name) | ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                    known.add(name)
                case ast.Constant(value=str(word)) if word.isidentifier():  # a reason, a kind
                    known.add(word)
    assert wrong_names(_CLASS, sources("egressproxy"), lambda name: name not in known) == []


def test_a_module_docstring_begins_with_a_name_that_is_there():
    """`Pool: the connections …`: a class or function of the module, or the name of the module."""
    wrong = []
    for path in sources("egressproxy"):
        head = re.match(r"(\w+): ", ast.get_docstring(tree(path)) or "")
        if head is not None and path.name != "__init__.py":
            word = head[1].lower()
            if word not in (path.stem, f"{path.stem}s") and not _defines(path, [head[1]]):
                wrong.append(f"{path.relative_to(ROOT)}: {head[1]}")
    assert wrong == []


@pytest.mark.parametrize(
    ("reference", "is_there"),
    [
        ("net/loop", True), ("net.loop.new_loop", True), ("config/compile/routes", True), ("processes.packing", True),
        ("net/turn", False), ("transport/loop", False), ("net.loop.old_loop", False), ("gateway/live", False),
    ],
)  # fmt: skip
def test_a_reference_is_followed_to_the_name(reference: str, is_there: bool):
    match = _REFERENCE.search(f"See `{reference}`, where it is.")
    assert match is not None
    assert leads_somewhere(match[1]) is is_there


# ---- the state of an exchange

#: How the house calls an exchange.
EXCHANGE = re.compile(r"(\w+\.)*(_?x|_?exchange|own|again)")


def noting(source: str) -> list[str]:
    """The uses of `notes` and `note` of an exchange, as they are written."""
    uses = (node for node in every(parsed(source), ast.Attribute) if node.attr in ("note", "notes"))
    return [ast.unparse(use) for use in uses if EXCHANGE.fullmatch(ast.unparse(use.value))]


def test_the_gateway_keeps_nothing_of_an_exchange_under_a_text():
    found = {module_name(path): uses for path in sources("egressproxy") if (uses := noting(text_of(path)))}
    assert found.keys() <= {"model.exchange"}, "use a StateSlot: notes are for filters of users"


def test_notes_of_an_exchange_are_found_where_it_stands():
    source = "x.note('a', 1)\nself._x.notes['a']\nroute.notes\nvalidation.note('a')"
    assert noting(source) == ["x.note", "self._x.notes"]


# ---- values of JSON


def hashed_values(module: ast.Module) -> list[int]:
    """The lines that look for `x.get("name")` in a frozenset of their module: an object or a list has no hash."""
    sets = {
        ast.unparse(node.target)
        for node in module.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node).partition(" = ")[2].startswith("frozenset(")
    }
    found = (node for node in every(module, ast.Compare) if isinstance(node.ops[0], ast.In | ast.NotIn))
    of_members = (node for node in found if re.search(r"\.get\('\w+'\)$", ast.unparse(node.left)))
    return [node.lineno for node in of_members if ast.unparse(node.comparators[0]) in sets]


def test_a_member_of_json_is_looked_for_in_a_tuple():
    folders = (f"egressproxy/{each}" for each in ("admin", "ai", "filters", "identity"))
    assert {module_name(path): lines for path in sources(*folders) if (lines := hashed_values(tree(path)))} == {}
    assert hashed_values(ast.parse("A: Final = frozenset(('a',))\nx.get('a') in A")) == [2]


# ---- docstrings


@cache
def bases() -> dict[str, set[str]]:
    """The names of the classes that stand above each class name of the house, and of its methods."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sources("egressproxy"):
        for node in every(tree(path), ast.ClassDef):
            above = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
            found[node.name] |= {base.attr if isinstance(base, ast.Attribute) else ast.unparse(base) for base in above}
    return found


@cache
def methods() -> dict[str, set[str]]:
    """The names of the functions in each class name of the house."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sources("egressproxy"):
        for node in every(tree(path), ast.ClassDef):
            found[node.name] |= {each.name for each in node.body if isinstance(each, FUNCTIONS)}
    return found


@cache
def protocols() -> set[str]:
    """The names of the methods that Protocols of the house declare: who implements one need not name it as a base."""
    return {method for name, above in bases().items() if "Protocol" in above for method in methods()[name]}


def overrides(above: set[str], method: str) -> bool:
    """Whether a class above or a Protocol has this method: its docstring says what the method does."""
    if method in protocols():
        return True
    seen: set[str] = set()
    left = [*above]
    while left:
        name = left.pop()
        outside = name not in methods() and any(
            hasattr(getattr(module, name, None), method) for module in (asyncio, pydantic)
        )
        if outside or method in methods().get(name, ()):
            return True
        if name not in seen:
            seen.add(name)
            left.extend(bases().get(name, ()))
    return False


def without_docstring(path: Path) -> Iterator[str]:
    """The public functions and methods of a file that do more than one thing, override nothing, and do not say what."""
    left: list[tuple[str, ast.AST]] = [("", tree(path))]
    while left:
        prefix, node = left.pop()
        above = bases()[node.name] if isinstance(node, ast.ClassDef) else set()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If | ast.Try):
                left.append((prefix, child))
            elif isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
                left.append((f"{prefix}{child.name}.", child))
            elif isinstance(child, FUNCTIONS) and not child.name.startswith("_"):
                says_nothing = ast.get_docstring(child) is None and not overrides(above, child.name)
                if says_nothing and sum(isinstance(each, ast.stmt) for each in ast.walk(child)) > 2:
                    yield f"{path.relative_to(ROOT)}: {prefix}{child.name}"


def test_public_functions_have_docstrings():
    found = [name for path in sources("egressproxy") for name in without_docstring(path)]
    assert found == []
