"""Write: a write to the admin API, as a message between the processes that receive, evaluate and serve it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from egressproxy.model.published_object import Key
from egressproxy.processes.loader.request import LoadRequest, read_request
from egressproxy.processes.loader.result import LOADED, CompiledConfig, read_values
from egressproxy.processes.pickling import classes, dumps, loads


class Verb(Enum):
    CREATE = "create"
    REPLACE = "replace"
    JSON_PATCH = "json-patch"
    MERGE_PATCH = "merge-patch"
    STRATEGIC_PATCH = "strategic-merge-patch"
    APPLY = "apply"
    DELETE = "delete"


class FieldValidation(Enum):
    """The effect of unknown fields in Kubernetes' own kinds, which are never stored."""

    IGNORE = "Ignore"
    WARN = "Warn"
    STRICT = "Strict"


@dataclass(frozen=True, slots=True)
class Write:
    """One write to one object; `group` "" is the core group, `namespace` "" a cluster-scoped kind.

    `name` is "" if a new object's body has it. `body` is JSON, or YAML in an APPLY. `resource_version` is the object's
    current one, "" for a new object. `manager` is the owner of the written fields.
    """

    verb: Verb
    group: str
    version: str
    kind: str
    plural: str
    namespace: str
    name: str
    body: bytes = field(repr=False)
    manager: str
    resource_version: str = ""
    is_forced: bool = False
    is_dry_run: bool = False
    field_validation: FieldValidation = FieldValidation.WARN

    @property
    def key(self) -> Key:
        """The key of the object; its name is "" where only the body has it."""
        return self.group, self.kind, self.namespace, self.name

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """The object as Kubernetes names it to people: `gateways.gateway.networking.k8s.io "models"`."""
        return f'{self.plural}{"." if self.group else ""}{self.group} "{self.name}"'

    @property
    def is_secret(self) -> bool:
        """Whether it is of a Secret, whose values are never shown."""
        return (self.group, self.kind) == ("", "Secret")


class WriteRefused(Exception):
    """A refused write: a Status with this code and reason; `causes` are (CauseType, message, field path). `name` is the
    object's, "" if unknown.
    """

    def __init__(
        self, code: int, reason: str, message: str, causes: Sequence[tuple[str, str, str]] = (), name: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.causes = tuple(causes)
        self.name = name

    def __reduce__(self) -> tuple[type[WriteRefused], tuple[object, ...]]:
        return WriteRefused, (self.code, self.reason, str(self), self.causes, self.name)


@dataclass(frozen=True, slots=True)
class Written:
    """An accepted write. `manifest` is JSON without a Secret's values.

    `file` is its file, "" for a dry run. `warnings` are for the client.
    """

    name: str
    uid: str
    manifest: bytes
    is_new: bool
    file: str = ""
    warnings: tuple[str, ...] = ()


class Outcomes(NamedTuple):
    """The results of a batch: `results` in the order of the writes. `loaded` None: no change."""

    results: Sequence[Result]
    loaded: CompiledConfig | None


#: The result of one write; None: evaluate it again, after the others.
Result = Written | WriteRefused | None


_WRITES: Final = classes((FieldValidation, Verb, Write))


def write_writes(request: bytes, writes: Sequence[Write]) -> bytes:
    """For `read_writes`, in a process of ours. `request` is that for a loading without them."""
    return dumps((request, tuple(writes)))


def read_writes(data: bytes) -> tuple[LoadRequest, tuple[Write, ...]]:
    """The request of `write_writes`. Raises errors of many types for invalid or incomplete bytes."""
    request, writes = loads(data, _WRITES, "part of a write")
    return read_request(request), writes


def read_outcomes(data: bytes) -> Outcomes:
    """The Outcomes from another process of ours. Raises ValueError for invalid or incomplete bytes."""
    found = read_values(data, (*LOADED, Outcomes, WriteRefused, Written))
    if isinstance(found, Outcomes):
        return found
    raise ValueError("no answer of a process that loads")
