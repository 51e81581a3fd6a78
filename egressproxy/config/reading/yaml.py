"""YAML text to plain values, with the location of every field; independent of kinds.

Only PyYAML's parser and composer are used; scalars are read here, because of YAML 1.1's traps. Numbers are those of
JSON (and 0x); timestamps stay text; `22:22` and `0777` stay text, so that numeric fields refuse them; `no` and `on` are
booleans, as in Kubernetes, so that text fields refuse them. A later anchor replaces one of the same name, and `<<`
merges mappings, as in kubectl and Helm.
Refused: tags that make objects, duplicate keys, exponential aliases, endless nesting, other encodings than UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

#: Names of fields, and indices of items.
FieldPath = tuple[str | int, ...]

MAX_FILE_BYTES = 16 * 1024 * 1024
#: The most nodes of a file; each takes about half a kilobyte.
MAX_NODES = 1_000_000
MAX_DEPTH = 100
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_TOO_DEEP_REMEDY = "remove what does not belong there"
#: The most nodes that aliases may add.
MAX_ALIASED_NODES = 100_000

_PREFIX = "tag:yaml.org,2002:"
_STR, _SEQ, _MAP = _PREFIX + "str", _PREFIX + "seq", _PREFIX + "map"
_NULL, _BOOL, _INT, _FLOAT = _PREFIX + "null", _PREFIX + "bool", _PREFIX + "int", _PREFIX + "float"
_TAGS = frozenset((_STR, _SEQ, _MAP, _NULL, _BOOL, _INT, _FLOAT, _PREFIX + "timestamp"))

_WORDS: dict[str, tuple[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), (_NULL, None)),
    **{spelling: (_BOOL, True) for word in ("true", "yes", "on") for spelling in (word, word.title(), word.upper())},
    **{spelling: (_BOOL, False) for word in ("false", "no", "off") for spelling in (word, word.title(), word.upper())},
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,18})|0x[0-9a-fA-F]{1,16}")
_DECIMAL = re.compile(
    r"[-+]?(?:\.[0-9]{1,19}|(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{0,19}|(?=[eE])))(?:[eE][-+]?[0-9]{1,2})?"
)
_NUMERIC_START = frozenset("-+.0123456789")


class SourceLocation(NamedTuple):
    """Line and column, counted from 1; 0 is the file as a whole."""

    line: int = 0
    column: int = 0


#: A field, the location of its value, and of its key (or of the value).
PlacedField = tuple[FieldPath, SourceLocation, SourceLocation]


@dataclass(frozen=True, slots=True)
class Fault:
    """An error in the text itself."""

    location: SourceLocation
    message: str
    remedy: str = ""


@dataclass(slots=True, eq=False)
class Document:
    """A YAML document, or an item of a list: a value, and its locations. `has_nulls`: the file so far has nulls."""

    node: Node
    value: Any
    faults: Sequence[Fault] = ()
    has_nulls: bool = False

    def item(self, key: str, index: int) -> Document:
        """The document at `value[key][index]`."""
        return Document(self._find((key, index))[1], self.value[key][index], (), self.has_nulls)

    def location_of(self, path: Sequence[str | int], *, key: bool = False) -> SourceLocation:
        """The location of the field at this path: its value, or its key; if missing, the nearest parent."""
        key_node, node, _ = self._find(path)
        return _location(key_node if key and key_node is not None else node)

    def written(self, path: Sequence[str | int]) -> str | None:
        """The source text of the scalar at this path, None if it is no scalar or missing."""
        _, node, depth = self._find(path)
        return node.value if depth == len(path) and isinstance(node, ScalarNode) else None

    def located_fields(self, path: FieldPath) -> Iterator[PlacedField]:
        """The field at this path and all below it."""
        key_node, node, depth = self._find(path)
        if depth == len(path):
            yield from _located_fields(path, key_node, node)

    def _find(self, path: Sequence[str | int]) -> tuple[Node | None, Node, int]:
        key_node: Node | None = None
        node = self.node
        for depth, step in enumerate(path):
            if isinstance(node, MappingNode):
                found = [(k, v) for k, v in node.value if k.value == str(step)]
                if not found:
                    return key_node, node, depth
                key_node, node = found[-1]
            elif isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.value):
                key_node, node = None, node.value[step]
            else:
                return key_node, node, depth
        return key_node, node, len(path)


def read_documents(data: bytes) -> Iterator[Document | Fault]:
    """Read the documents of a file one by one, as far as possible; a Fault is an error outside of documents.

    Drop a document before the next: many nodes slow the garbage collector down.
    """
    text, number = "", 0
    try:
        text = _decode(data)
        loader = _Loader(text)
        while True:
            try:
                if not loader.check_node():
                    break
                node = loader.get_node()
            except yaml.composer.ComposerError as error:
                if error.problem != "second occurrence":
                    raise
                loader = _RedefiningLoader(text)
                for _ in range(number + 1):  # through the faulty document
                    loader.check_node()
                    node = loader.get_node()
            number += 1
            document = _document(node, loader, b"&" in data)
            if document is not None:
                yield document
            del document, node
    except _Refused as refused:
        yield refused.fault
    except yaml.MarkedYAMLError as error:
        yield _syntax_fault(error, text)
    except yaml.reader.ReaderError as error:
        location = SourceLocation(text.count("\n", 0, error.position) + 1, 1)
        yield Fault(location, "a control character is not possible in YAML", "remove it, or escape it in quotes")
    except yaml.YAMLError:
        yield Fault(SourceLocation(), "not YAML", "check the file with a YAML linter")


def levels_of(value: Any) -> Iterator[list[Any]]:
    """The objects and lists of a value, level by level, without recursion."""
    values = [value]
    while values := [each for each in values if isinstance(each, dict | list)]:
        yield values
        values = [inner for each in values for inner in (each.values() if isinstance(each, dict) else each)]


def _document(node: Node | None, loader: _Loader, may_have_aliases: bool) -> Document | None:
    """The document of this node; None for an empty one, as between two separators."""
    if node is None:
        return None
    if may_have_aliases:
        _check_aliases(node, loader.nodes)
    faults: list[Fault] = []
    value = _value(node, faults)
    return Document(node, value, faults, loader.has_nulls) if value is not None or faults else None


def _decode(data: bytes) -> str:
    if len(data) > MAX_FILE_BYTES:
        message = f"the file is larger than {MAX_FILE_BYTES // (1024 * 1024)} MiB"
        raise _Refused(SourceLocation(), message, "split it, or remove what does not belong there")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise _Refused(SourceLocation(1, 1), "the file is not UTF-8 but UTF-16 or UTF-32", "save it as UTF-8")
    if b"\x00" in data:
        line = data.count(b"\n", 0, data.index(b"\x00")) + 1
        raise _Refused(SourceLocation(line, 1), "the file is binary: it holds a NUL byte", "save it as UTF-8 text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise _Refused(SourceLocation(line, column), "the file is not UTF-8", "save it as UTF-8") from None


class _Refused(Exception):
    """An error that ends reading the file."""

    def __init__(self, location: SourceLocation, message: str, remedy: str) -> None:
        super().__init__(message)
        self.fault = Fault(location, message, remedy)


if TYPE_CHECKING:
    _Parser = yaml.SafeLoader
else:
    _Parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml if PyYAML was built with it


class _Loader(_Parser):
    """Composes and counts nodes; `resolve` gives scalars the tags of this module instead of YAML 1.1's."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.nodes = 0
        self.depth = 0
        self.has_nulls = False

    def resolve(self, kind: type[Node], value: Any, implicit: Any) -> str:
        """The tag of an untagged node; `implicit[0]`: an unquoted scalar."""
        if kind is ScalarNode:
            tag = _tag(value) if implicit[0] else _STR
            if tag is _NULL:
                self.has_nulls = True
            return tag
        return _SEQ if kind is SequenceNode else _MAP

    def descend_resolver(self, current_node: Node | None, current_index: Any) -> None:
        """Count a node before composing it. Raises _Refused for too many or too deeply nested nodes."""
        self.nodes += 1
        self.depth += 1
        if self.nodes > MAX_NODES:
            raise _Refused(_location(current_node), f"more than {MAX_NODES} values in one file", "split the file")
        if self.depth > MAX_DEPTH:
            raise _Refused(_location(current_node), _TOO_DEEP, _TOO_DEEP_REMEDY)

    def ascend_resolver(self) -> None:
        self.depth -= 1


if TYPE_CHECKING or issubclass(_Parser, yaml.composer.Composer):
    _PythonComposer = _Loader
else:

    class _PythonComposer(yaml.composer.Composer, _Loader):
        def __init__(self, text: str) -> None:
            yaml.composer.Composer.__init__(self)
            _Loader.__init__(self, text)


class _RedefiningLoader(_PythonComposer):
    """PyYAML's slower composer in Python, which can redefine anchors, unlike libyaml's."""

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Compose a node. An alias refers to the last earlier node with its anchor: YAML 1.2.2 section 3.2.2.2."""
        if not self.check_event(yaml.AliasEvent):
            self.anchors.pop(self.peek_event().anchor, None)  # type: ignore[no-untyped-call]
        return super().compose_node(parent, index)


def _tag(text: str) -> str:
    word = _WORDS.get(text)
    if word is not None:
        return word[0]
    if text[0] in _NUMERIC_START:
        if _INTEGER.fullmatch(text):
            return _INT
        if _DECIMAL.fullmatch(text):
            return _FLOAT
    return _STR


def _value(node: Node, faults: list[Fault]) -> Any:
    """The plain value of a node. Faults are collected; a faulty part is read as far as possible."""
    tag = node.tag
    if isinstance(node, ScalarNode):
        if tag == _STR:
            return node.value
        return _scalar(node, faults)
    if tag not in (_SEQ, _MAP):
        faults.append(_tag_fault(node))
        return None
    if isinstance(node, SequenceNode):
        return [_value(child, faults) for child in node.value]
    assert isinstance(node, MappingNode)
    if any(_is_merge(key) for key, _ in node.value):
        _merge(node, faults)
    made: dict[str, Any] = {}
    for key_node, child in node.value:
        if not isinstance(key_node, ScalarNode):
            faults.append(Fault(_location(key_node), "a key has to be text", "quote values that start with { or ["))
            continue
        key = key_node.value
        if key in made:
            first = next(k for k, _ in node.value if k.value == key)
            message = f"the key {key} stands twice, first on line {_location(first).line}"
            faults.append(Fault(_location(key_node), message, "keep one of them"))
        made[key] = _value(child, faults)
    return made


def _is_merge(key: Node) -> bool:
    return isinstance(key, ScalarNode) and key.value == "<<" and not key.style


def _merge(node: MappingNode, faults: list[Fault]) -> None:
    """Replace `<<` by the pairs of the merged mappings; the mapping's own keys win, then those of the first mapping.

    Source: the merge key of YAML 1.1 (yaml.org/type/merge).
    """
    own = [(key, child) for key, child in node.value if not _is_merge(key)]
    known = {key.value for key, _ in own if isinstance(key, ScalarNode)}
    pairs: list[tuple[Node, Node]] = []
    for key, child in node.value:
        if not _is_merge(key):
            continue
        for source in child.value if isinstance(child, SequenceNode) else (child,):
            if not isinstance(source, MappingNode):
                faults.append(
                    Fault(_location(key), "<< merges mappings alone", "write an alias of a mapping, or a list of them")
                )
                continue
            if any(_is_merge(each) for each, _ in source.value):
                _merge(source, faults)
            for pair in source.value:
                if isinstance(pair[0], ScalarNode) and pair[0].value not in known:
                    known.add(pair[0].value)
                    pairs.append(pair)
    node.value = pairs + own


def _scalar(node: ScalarNode, faults: list[Fault]) -> Any:
    tag, text = node.tag, node.value
    if tag not in _TAGS:
        faults.append(_tag_fault(node))
        return None
    if tag in (_NULL, _BOOL) and text in _WORDS:
        return _WORDS[text][1]
    if tag == _INT and _INTEGER.fullmatch(text):
        return int(text, 0 if "x" in text else 10)
    if tag == _FLOAT and _DECIMAL.fullmatch(text):
        return float(text)
    return text


def _tag_fault(node: Node) -> Fault:
    # A local tag may be a mistyped secret (`password: !x`), so errors name only public tags.
    name = f"the tag !!{node.tag.removeprefix(_PREFIX)}" if node.tag.startswith(_PREFIX) else "a tag of your own"
    return Fault(_location(node), f"{name} is not possible here", "write plain values; quote text that starts with !")


def _check_aliases(root: Node, written: int) -> None:
    """Refuse recursive and exponential aliases (billion laughs), before values are built."""
    sizes: dict[int, int] = {}

    def size(node: Node) -> int:
        if isinstance(node, ScalarNode):
            return 1
        known = sizes.get(id(node))
        if known is not None:
            if not known:
                raise _Refused(_location(node), "an alias contains itself", "write the values out")
            return known
        sizes[id(node)] = 0
        total = 1
        for child in node.value:
            total += size(child[0]) + size(child[1]) if isinstance(child, tuple) else size(child)
        if total > written + MAX_ALIASED_NODES:
            raise _Refused(_location(node), "aliases multiply the file beyond all bounds", "write the values out")
        sizes[id(node)] = total
        return total

    size(root)


def _syntax_fault(error: yaml.MarkedYAMLError, text: str) -> Fault:
    mark = error.problem_mark or error.context_mark
    location = SourceLocation(mark.line + 1, mark.column + 1) if mark is not None else SourceLocation()
    problem = error.problem or "not YAML"
    if mark is not None and text[mark.index : mark.index + 1] == "\t":
        return Fault(location, "a tab stands where YAML takes blanks only", "indent with blanks")
    if error.context == "while scanning an alias":
        # Do not repeat the text, which may be a password.
        return Fault(location, "a plain value cannot start with *", 'quote it, as in "*.example.com"')
    if "alias" in problem or "anchor" in problem:
        # The parser's message would show the password in `password: *x`.
        return Fault(location, "an alias or anchor that does not fit", "quote text that starts with * or &")
    if "nesting depth" in problem:  # PyYAML's own limit, from 6.0.4 on, hit by its read-ahead
        return Fault(location, _TOO_DEEP, _TOO_DEEP_REMEDY)
    return Fault(location, f"not YAML: {problem}", "check brackets, quotes and indentation up to this place")


def _located_fields(path: FieldPath, key_node: Node | None, node: Node) -> Iterator[PlacedField]:
    yield path, _location(node), _location(key_node if key_node is not None else node)
    if isinstance(node, MappingNode):
        for key, child in node.value:
            yield from _located_fields((*path, key.value), key, child)
    elif isinstance(node, SequenceNode):
        for index, child in enumerate(node.value):
            yield from _located_fields((*path, index), None, child)


def _location(node: Node | None) -> SourceLocation:
    mark = node.start_mark if node is not None else None
    return SourceLocation(mark.line + 1, mark.column + 1) if mark is not None else SourceLocation()
