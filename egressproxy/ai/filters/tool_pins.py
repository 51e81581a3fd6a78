"""ToolPins: the definitions of a server's tools that an operator has approved, against the ones that the server lists.

A pin is the SHA-256 of a definition in canonical JSON. Pins are written in the manifest, or learned from the first list
of the server and kept in a file. A definition with another hash has changed; a tool without a pin is unknown. Both are
told, and so are characters that nobody sees, and phrases of prompt injection.

Sources: RFC 8785 (canonical JSON), Model Context Protocol, Server Features, Tools.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b, sha256
from itertools import islice
from math import inf
from pathlib import Path
from time import monotonic, sleep, time
from typing import Annotated, Any, Final, Literal

from egressproxy.ai.apis.long_json import decoding, dumping
from egressproxy.ai.content.injection_phrases import InjectionPhrases
from egressproxy.filters.base import FilterContext, UnusableReference
from egressproxy.filters.settings import FilterConfig, Within, matching
from egressproxy.ir.policy import FieldFault
from egressproxy.model.exchange import StateSlot
from egressproxy.model.work import Work, at_once
from egressproxy.net.durable_file import replace_file
from egressproxy.net.file_lock import try_lock
from egressproxy.net.keyed_counters import KEY_BYTES, SHARED, SHARED_KEYS, KeyedCounters

#: The members that a pin covers: those that a model or a person reads of a tool.
MEMBERS: Final = ("annotations", "description", "inputSchema", "name", "outputSchema", "title")
#: Definitions that are kept to tell what has changed: of so many bytes each, and so many.
MAX_KEPT: Final = 16 * 1024
MAX_TOOLS: Final = 2000
#: Bytes of a file of learned pins, and up to how many of them it keeps definitions beside the hashes.
MAX_FILE: Final = 16 * 1024 * 1024
MAX_WITH_DEFINITIONS: Final = 1024 * 1024
#: Seconds from the first page of a list that is learned, after which nothing more of the server is.
LEARNS_S: Final = 600.0
#: Seconds for which another process may hold the file.
LOCK_S: Final = 1.0
MAX_NAME: Final = 1024
#: Differences of two definitions that are told, and the characters of each text.
MAX_TOLD: Final = 3
MAX_TEXT: Final = 120

#: Zero width, direction of writing, invisible operators, fillers, tags and the selectors that hide bytes. Joiners are
#: looked at apart: emoji and some scripts need them.
_HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\ufff9-\ufffb]|[\U000e0000-\U000e0fff]|(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])"
)
_HASH: Final = re.compile(rb"sha256:[0-9a-f]{64}")
_SPELLED: Final = {member.casefold(): member for member in MEMBERS}
#: How long a deviation is remembered (monotonic seconds), which is for ever.
_YEARS: Final = 1e9
_SLICE: Final = 16 * 1024
_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class ToolPin(FilterConfig):
    """A tool as it was approved. A name may stand several times, for several definitions.

    Attributes:
        name: the tool's name.
        hash: "sha256:" and the hash of its definition, as `egressproxy mcp pins` prints it.
        description: the description as it was approved, for people and for the difference that is told.
    """

    name: Annotated[str, Within(min_length=1, max_length=MAX_NAME)]
    hash: Annotated[str, matching(_HASH, "{!r} is no hash: write sha256: and 64 hexadecimal digits")]
    description: Annotated[str, Within(max_length=MAX_KEPT)] | None = None


@dataclass(frozen=True, slots=True)
class ToolPinsConfig(FilterConfig):
    """The pinned tools of the server.

    Attributes:
        mode: `Enforce` takes tools that deviate out of lists, and refuses their calls; `Report` tells of them.
        tools: the pins; None: none are written.
        learn_file: an absolute path of the file that keeps the definitions in the first list of the server as pins.
        unreadable: the effect on a body that is not JSON or ambiguous.
        max_body_bytes: the longest request or response that is read; None: as of ToolPolicy.
    """

    mode: Literal["Enforce", "Report"] = "Enforce"
    tools: Annotated[tuple[ToolPin, ...], Within(max_length=MAX_TOOLS)] | None = None
    learn_file: Annotated[str, Within(min_length=1)] | None = None
    unreadable: Literal["Deny", "Allow"] = "Deny"
    max_body_bytes: Annotated[int, Within(ge=1, le=64 * 1024 * 1024)] | None = None

    def __post_init__(self) -> None:
        if self.tools is None and self.learn_file is None:
            raise ValueError("there are no pins: write `tools`, as `egressproxy mcp pins` prints them, or `learnFile`")
        if self.learn_file is not None and not os.path.isabs(self.learn_file):
            why = f"{self.learn_file!r} is no absolute path; give one such as /var/lib/egressproxy/pins.json"
            raise FieldFault(why, "learnFile")


def file_problem(config: ToolPinsConfig) -> str:
    """Why this process cannot keep learned pins; "" where it can."""
    folder = os.path.dirname(config.learn_file or "")
    if folder and not (os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)):
        return f"{folder} is no folder that this user can write to: create it, for the user of the gateway alone"
    return ""


class ListedTools:
    """Which backends of one rule have listed a tool of a name."""

    __slots__ = ("_backends", "_told")

    def __init__(self) -> None:
        self._backends: dict[str, str] = {}
        self._told: set[str] = set()

    def other(self, name: str, backend: str) -> str:
        """Another backend with a tool of this name, once for each name; "" where there is none."""
        first = self._backends.get(name)
        if first is None:
            if len(self._backends) < MAX_TOOLS:
                self._backends[name] = backend
            return ""
        if first == backend or name in self._told:
            return ""
        self._told.add(name)
        return first


#: Of a rule with several MCP backends.
LISTED_TOOLS: Final[StateSlot[ListedTools]] = StateSlot("listed tools")


@dataclass(frozen=True, slots=True)
class Definition:
    """A tool as a server lists it. `text` is its canonical JSON, of the members that pins cover."""

    name: str
    hash: str
    text: bytes
    members: Mapping[str, Any]

    @classmethod
    def reading(cls, tool: Mapping[str, Any]) -> Work[Definition]:
        """The definition in an entry of a list, in turns. A member that is null counts as absent."""
        members = {name: tool[name] for name in MEMBERS if tool.get(name) is not None}
        text = yield from dumping(members, is_sorted=True)
        digest = sha256()
        for at in range(0, len(text), 4 * _SLICE):
            digest.update(text[at : at + 4 * _SLICE])
            yield
        return cls(str(tool.get("name")), f"sha256:{digest.hexdigest()}", text, members)

    @classmethod
    def of(cls, tool: Mapping[str, Any]) -> Definition:
        return at_once(cls.reading(tool))

    def finding_hidden(self) -> Work[str]:
        """The first character that nobody sees, as U+200B; "" for none."""
        if self.text.isascii():
            return ""
        text = yield from decoding(self.text)
        for at in range(0, len(text), _SLICE):
            for found in _HIDDEN.finditer(text, at, min(at + _SLICE, len(text))):
                if found[0] not in "\u200c\u200d" or _is_hidden_joiner(text, found.start()):
                    return f"U+{ord(found[0]):04X}"
            yield
        return ""

    def finding_phrase(self, phrases: InjectionPhrases) -> Work[str]:
        """The name of a phrase of prompt injection in one of its texts; "" for none."""
        for text in _texts(self.members):
            for at in range(0, len(text), _SLICE):
                found = phrases.found(text[at : at + _SLICE + _SHOWN])
                if found:
                    return found
                yield
        return ""


def _misspelled(tool: Mapping[str, Any]) -> str:
    """A member that readers without regard to case take for one that pins cover; "" for none."""
    return next((each for each in tool if _SPELLED.get(each.casefold(), each) != each), "")


def _is_hidden_joiner(text: str, at: int) -> bool:
    """Whether a joiner stands beside ASCII: at the border of a slice the expression cannot tell."""
    return text[at - 1 : at].isascii() or text[at + 1 : at + 2].isascii()


def _texts(value: Any) -> Iterator[str]:
    if type(value) is str:
        yield value
    elif type(value) is dict:
        for name, each in value.items():
            yield name
            yield from _texts(each)
    elif type(value) is list:
        for each in value:
            yield from _texts(each)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What has changed between two definitions, for people: the first few values, with their places, in ASCII."""
    found = list(islice(_differences(before, after, ""), MAX_TOLD + 1))
    more = "; and more" if len(found) > MAX_TOLD else ""
    return "; ".join(found[:MAX_TOLD]) + more


def _differences(before: Any, after: Any, place: str) -> Iterator[str]:
    if (type(before) is dict and type(after) is dict) or (not place and isinstance(before, Mapping)):
        for name in sorted({*before, *after}):
            inner = f"{place}.{name}" if place else name
            if name not in after:
                yield f"{_shown(inner)} is gone"
            elif name not in before:
                yield f"{_shown(inner)} is new: {_quoted(after[name])}"
            else:
                yield from _differences(before[name], after[name], inner)
    elif before != after:
        begin = 0
        if type(before) is str and type(after) is str:
            shorter = min(len(before), len(after))
            begin = max(0, next((at for at in range(shorter) if before[at] != after[at]), shorter) - MAX_TEXT // 4)
            before, after = before[begin:], after[begin:]
        yield f"{_shown(place)} was {_quoted(before, begin)}, is {_quoted(after, begin)}"


def _quoted(value: Any, begin: int = 0) -> str:
    text = value if type(value) is str else json.dumps(value, sort_keys=True)[: MAX_TEXT + 1]
    return ("…" if begin else "") + ascii(text[:MAX_TEXT]) + ("…" if len(text) > MAX_TEXT else "")


def _shown(name: str) -> str:
    return ascii(name[:_SHOWN])[1:-1]


class ToolPins:
    """The pins of one filter, which stands at one backend. What a list has shown to deviate, all workers know."""

    def __init__(self, config: ToolPinsConfig, context: FilterContext) -> None:
        """Raises UnusableReference for a file that is none of ours."""
        self._enforces = config.mode == "Enforce"
        self._notices = context.notices
        self._pins: dict[str, set[str]] = {}
        for pin in config.tools or ():
            self._pins.setdefault(pin.name, set()).add(pin.hash)
        self._approved = {
            pin.name: {"name": pin.name, "description": pin.description}
            for pin in config.tools or ()
            if pin.description is not None
        }
        self._learned = LearnedPins(config.learn_file) if config.learn_file is not None else None
        if self._learned is not None:
            try:
                self._learned.read()
            except (OSError, ValueError) as error:
                raise UnusableReference(f"learnFile {config.learn_file} cannot be read: {error}") from None
        #: Definitions that were as pinned, by backend and name, for the difference that is told.
        self._good: dict[tuple[str, str], Mapping[str, Any]] = {}
        #: Findings in definitions, by hash: a character that nobody sees, a phrase.
        self._findings: dict[str, tuple[str, str]] = {}
        self._told: dict[tuple[str, str], str] = {}
        self._phrases: InjectionPhrases | None = None
        identity = blake2b(f"{context.scope}\0{context.name}\0tool pins".encode(), digest_size=KEY_BYTES).digest()
        self._deviating: KeyedCounters = (
            KeyedCounters(MAX_TOOLS) if context.keyed is None else context.keyed(SHARED, SHARED_KEYS).of_limit(identity)
        )
        #: Deviating tools, as backend and name, for which the table has no room: this worker alone knows them.
        self._unkept: set[tuple[str, str]] = set()
        self._found = context.meter.counter(
            "egress_tool_pins", "Tools that deviate from their pins, or are suspicious.", ("kind", "action")
        )

    # --- lists -------------------------------------------------------------------------------------------------------
    def judging(
        self, tool: Mapping[str, Any], backend: str, listed: ListedTools | None, deviating: set[str]
    ) -> Work[bool]:
        """Whether this entry of a list, a tool with a name, may be shown. `deviating` gets the name if it deviates: an
        entry of the same list that is as pinned does not lift that.
        """
        definition = yield from Definition.reading(tool)
        name, where = definition.name, f"tool {definition.name[:_SHOWN]!a} of backend {backend}"
        if listed is not None and (other := listed.other(name, backend)):
            self._found.add(1, "twice", "reported")
            self._tell("ToolNameTwice", f"{where} has the name of a tool of backend {other}, behind one route")
        hidden, phrase = yield from self._finding(definition)
        if phrase and self._is_news(backend, f"{name}\0phrase", definition.hash):
            self._found.add(1, "instructions", "reported")
            self._tell("ToolInstructions", f"{where} is described with a phrase of prompt injection ({phrase})")
        may_stay = name not in deviating
        deviating.add(name)
        if hidden:
            why = f"{where} has a character that nobody sees ({hidden})"
            return self._deviates("ToolHiddenCharacters", "hidden", backend, name, why, definition.hash)
        misspelled = _misspelled(tool)
        pins = self._pins_of(backend, name)
        if pins is None:
            why = f"{where} is not pinned: its hash is {definition.hash}"
            return self._deviates("ToolUnknown", "unknown", backend, name, why, definition.hash)
        if misspelled or definition.hash not in pins:
            how = f"{_shown(misspelled)} is a member of it" if misspelled else self._difference(backend, definition)
            why = f"{where} is not as it was pinned: {how}; its hash is {definition.hash}"
            return self._deviates("ToolChanged", "changed", backend, name, why, definition.hash)
        if not may_stay:
            return not self._enforces
        deviating.discard(name)
        if len(definition.text) <= MAX_KEPT and len(self._good) < MAX_TOOLS:
            self._good[backend, name] = definition.members
        was_told = self._told.pop((backend, name), None) is not None
        if self._mark(backend, name, 0.0) or was_told:
            self._notices.normal("ToolAsPinned", f"{where} is as it was pinned")
        return True

    def learns(self, backend: str) -> bool:
        """Whether a list of this backend would be learned, for which the file is written."""
        return self._learned is not None and not self._learned.is_whole(backend)

    def learning(self, result: Mapping[str, Any], backend: str, *, is_first: bool) -> Work[None]:
        """Learn the tools in a page of the first list of this backend, before they are judged. `is_first`: the request
        has named no other page, so that a page without another behind it is the whole list.
        """
        if self._learned is None or self._learned.is_whole(backend):
            return
        definitions = []
        for tool in result["tools"]:
            if type(tool) is dict and type(tool.get("name")) is str and not _misspelled(tool):
                definition = yield from Definition.reading(tool)
                if not (yield from self._finding(definition))[0]:
                    definitions.append(definition)
        if not definitions:  # what a client without rights sees is no list to hold others to
            return
        learned, failed = self._learned, []

        def learn() -> None:
            try:
                learned.learn(backend, definitions, ends=is_first and not result.get("nextCursor"))
            except (OSError, ValueError) as error:
                failed.append(str(error))

        blocking: Any = learn
        yield blocking  # `in_turns` calls it in a thread: another process may hold the file
        if failed:
            self._tell("ToolPinsNotKept", f"learned pins cannot be kept in a file: {failed[0]}")

    def _finding(self, definition: Definition) -> Work[tuple[str, str]]:
        found = self._findings.get(definition.hash)
        if found is None:
            if self._phrases is None:
                self._phrases = InjectionPhrases()
            hidden = yield from definition.finding_hidden()
            phrase = yield from definition.finding_phrase(self._phrases)
            found = hidden, phrase
            if len(self._findings) >= MAX_TOOLS:
                self._findings.clear()
            self._findings[definition.hash] = found
        return found

    def _pins_of(self, backend: str, name: str) -> set[str] | None:
        written = self._pins.get(name)
        learned = self._learned.hash_of(backend, name) if self._learned is not None and written is None else ""
        return {learned} if learned else written

    def _difference(self, backend: str, definition: Definition) -> str:
        before = self._good.get((backend, definition.name)) or self._approved.get(definition.name)
        if before is None and self._learned is not None:
            before = self._learned.members_of(backend, definition.name)
        if before is None:
            return "what has changed is not known, since the gateway has not seen the pinned one"
        after = {name: each for name, each in definition.members.items() if name in before or len(before) > 2}
        return differences(before, after) or "the description is the same, and another member has changed"

    def _deviates(self, reason: str, kind: str, backend: str, name: str, why: str, hash_: str) -> bool:
        """Tell of a tool that deviates. Returns whether it is shown all the same."""
        pins = self._pins_of(backend, name)
        if pins is not None:  # others are refused anyway: a server cannot fill the table
            self._mark(backend, name, 1.0 if hash_ in pins else _number(hash_))
        self._found.add(1, kind, "withheld" if self._enforces else "reported")
        if self._is_news(backend, name, f"{kind} {hash_}"):
            outcome = "it is taken out of lists, and its calls are refused" if self._enforces else "mode is Report"
            self._tell(reason, f"{why} ({outcome})")
        return not self._enforces

    def _is_news(self, backend: str, name: str, what: str) -> bool:
        """Whether this was not told of the tool yet."""
        if self._told.get((backend, name)) == what:
            return False
        if len(self._told) >= MAX_TOOLS:
            self._told.clear()
        self._told[backend, name] = what
        return True

    def _tell(self, reason: str, message: str) -> None:
        self._notices.warning(reason, message)

    # --- calls -------------------------------------------------------------------------------------------------------
    def refusal(self, name: str, backend: str) -> str:
        """Why a call of this tool is refused, as a clause for "it"; "" where it is allowed."""
        why = ""
        if self._pins_of(backend, name) is None:
            why = "is not pinned"
            if self._learned is not None and not self._learned.is_whole(backend):
                why = "is not known yet: list the tools first"
        elif self._is_marked(backend, name):
            why = "is not as it was pinned"
        if why:
            self._found.add(1, "call", "denied" if self._enforces else "reported")
        return why if self._enforces else ""

    def _mark(self, backend: str, name: str, deviates: float) -> bool:
        """False: it did not deviate before, and does not now. `deviates`: 0.0, or what `_is_marked` goes by."""
        table, now = self._deviating, monotonic()
        if not deviates and not self._is_marked(backend, name):
            return False
        self._unkept.discard((backend, name))
        with table.lock:
            at = table.find(table.key(f"{backend}\0{name}".encode("utf-8", "replace")), now)
            if not table.is_shared_entry(at):
                table.cells[at], table.cells[at + 1] = (now + _YEARS, deviates) if deviates else (0.0, 0.0)
            elif deviates:
                self._unkept.add((backend, name))
        return True

    def _is_marked(self, backend: str, name: str) -> bool:
        if (backend, name) in self._unkept:
            return True
        table = self._deviating
        key = table.key(f"{backend}\0{name}".encode("utf-8", "replace"))
        found = table.peek(key, monotonic())[1]
        return found > 0 and found not in map(_number, self._pins_of(backend, name) or ())  # it may be pinned by now


def _number(hash_: str) -> float:
    """A number of its own for each definition, which a double holds exactly."""
    return 2.0 + int(hash_[-12:], 16)


class LearnedPins:
    """The definitions that the first list of each backend had, in a file that all workers read and write."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._size = 0  # of the file, in bytes
        self._servers: dict[str, dict[str, Any]] = {}
        self._version: tuple[int, int] = (0, 0)

    def hash_of(self, backend: str, name: str) -> str:
        """The learned hash; "" for a tool that was not learned."""
        found = self._tool(backend, name)
        if found is None and not self.is_whole(backend):
            self._refresh()  # another worker may have learned it
            found = self._tool(backend, name)
        return str(found["hash"]) if found is not None else ""

    def members_of(self, backend: str, name: str) -> Mapping[str, Any] | None:
        """The learned definition; None for a long one, and for a tool that was not learned."""
        found = self._tool(backend, name)
        members = found.get("definition") if found is not None else None
        return members if type(members) is dict and len(members) > 1 else None

    def backends(self) -> list[str]:
        return sorted(self._servers)

    def tools(self, backend: str) -> Mapping[str, Mapping[str, Any]]:
        """What was learned of a backend: by name the hash, and the definition if it is short."""
        found: Mapping[str, Mapping[str, Any]] = self._servers.get(backend, {}).get("tools", {})
        return found

    def is_whole(self, backend: str) -> bool:
        """Whether the first list of this backend has ended, or its time is over: nothing more is learned."""
        return _is_whole(self._servers.get(backend, {}))

    def learn(self, backend: str, definitions: Iterable[Definition], *, ends: bool) -> None:
        """Keep definitions, but for those that another worker has learned; `ends`: nothing more is learned. Blocks.
        Raises OSError, ValueError.
        """
        definitions, known = [each for each in definitions if len(each.name) <= MAX_NAME], self.tools(backend)
        if not ends and (len(known) >= MAX_TOOLS or all(each.name in known for each in definitions)):
            return  # a list without an end must not cost a write for each of its pages
        lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(lock)
            self.read()
            server = self._servers.get(backend, {})
            tools, size = dict(server.get("tools", {})), self._size
            for each in () if _is_whole(server) else definitions:
                if len(tools) < MAX_TOOLS:
                    size += len(each.text)
                    is_kept = len(each.text) <= MAX_KEPT and size <= MAX_WITH_DEFINITIONS
                    members = each.members if is_kept else {"name": each.name}
                    tools.setdefault(each.name, {"hash": each.hash, "definition": members})
            whole = ends or bool(server.get("isWhole"))
            changed = {"tools": tools, "isWhole": whole, "began": server.get("began", time())}
            servers = {**self._servers, backend: changed}
            text = json.dumps({"servers": servers}, sort_keys=True, indent=1).encode()
            if len(text) > MAX_FILE:
                raise ValueError(f"it would have more than {MAX_FILE} bytes")
            replace_file(Path(self._path), text)
            self.read()
        finally:
            os.close(lock)

    def read(self) -> None:
        """Read the file, if it is there. Raises OSError, ValueError."""
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_size > MAX_FILE:
                    raise ValueError(f"it has more than {MAX_FILE} bytes")
                found = json.loads(file.read())
        except FileNotFoundError:
            return
        servers = found.get("servers") if type(found) is dict else None
        if type(servers) is not dict or not all(
            type(server) is dict
            and type(server.get("tools", {})) is dict
            and isinstance(server.get("began", 0), int | float)
            and all(type(tool) is dict and type(tool.get("hash")) is str for tool in server.get("tools", {}).values())
            for server in servers.values()
        ):
            raise ValueError("it is no file of learned pins")
        self._servers, self._version = servers, (status.st_ino, status.st_mtime_ns)
        self._size = status.st_size

    def _tool(self, backend: str, name: str) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self._servers.get(backend, {}).get("tools", {}).get(name)
        return found

    def _refresh(self) -> None:
        try:
            status = os.stat(self._path)
            if (status.st_ino, status.st_mtime_ns) != self._version:
                self.read()
        except (OSError, ValueError):
            return  # what is known holds


def _is_whole(server: Mapping[str, Any]) -> bool:
    return bool(server.get("isWhole")) or time() > server.get("began", inf) + LEARNS_S


def _lock(descriptor: int) -> None:
    """Raises OSError where another process holds the file for too long."""
    ends = monotonic() + LOCK_S
    while not try_lock(descriptor):
        if monotonic() > ends:
            raise OSError("another process holds its lock")
        sleep(0.01)
