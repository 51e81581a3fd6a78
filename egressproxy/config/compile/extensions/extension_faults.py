"""Faults in the extensions of an object that are not load errors: unknown types, and Secrets that cannot be used.

Source: the egress proposal of Kubernetes' AI Gateway working group (`Degraded`, `UnsupportedExtensionType`), Gateway
API v1 (`ResolvedRefs`, `RefNotPermitted`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from egressproxy.config.compile.references import UnresolvedRef
from egressproxy.config.compile.status.conditions import Conditions
from egressproxy.ir.policy import ExtensionIR

_GONE: Final = "until it is there, requests are refused"


@dataclass(slots=True)
class ExtensionFaults:
    """The faults of one object. `unknown` are sentences about types; `unresolved` are (reason, sentence) of Secrets and
    of backends that filters call."""

    unknown: dict[str, None] = field(default_factory=dict)
    unresolved: dict[tuple[str, str], None] = field(default_factory=dict)

    def note_unknown(self, spec: ExtensionIR, path: str, names: Sequence[str], why: str = "") -> None:
        """An extension (whose field is `path`) of a type that is not among these names, or cannot be used (`why`)."""
        follows = "requests go on without it (failOpen)" if spec.fail_open else "requests that need it are refused"
        known = why or nearest_types(spec.type, names)
        unknown = f"the type {spec.type}, which cannot be used" if why else f"the unknown type {spec.type}"
        sentence = f"{path}.type: extension {spec.name} has {unknown}: {follows}; {known}"
        self.unknown[sentence] = None

    def note_secret(self, unresolved: UnresolvedRef, path: str) -> None:
        """A Secret that gives no value; `path` is the field that names it."""
        is_gone = unresolved.reason == "SecretNotFound"
        sentence = (
            f"missing: {unresolved.with_hint}; {_GONE}" if is_gone else f"{unresolved.with_hint}; requests are refused"
        )
        self.unresolved[unresolved.reason, f"{path}: {sentence}"] = None

    def note_misfit(self, why: str, path: str) -> None:
        """A Secret or variable that is there and does not fit its filter; `path` is the field that names it."""
        self.unresolved["InvalidSecret", f"{path}: {why}; until it is mended, requests are refused"] = None

    def note_backend(self, unresolved: UnresolvedRef, path: str) -> None:
        """A backend that a filter cannot call; `path` is the field that names it."""
        self.unresolved[unresolved.reason, f"{path}: {unresolved.with_hint}; what needs it fails"] = None

    def note_name(self, name: str, path: str) -> None:
        """A backend that a filter chooses or leaves out, and that does not exist; `path` is the field that names it."""
        sentence = f"{path}: no backend {name} exists, so this has no effect; write `name`, or `namespace/name`"
        self.unresolved["BackendNotFound", sentence] = None

    def set_conditions(self, conditions: Conditions) -> None:
        """Set ResolvedRefs and Degraded where they are concerned; what they say already is kept."""
        for reason, message in self.unresolved:
            conditions.fail("ResolvedRefs", reason, message)
        if self.unknown:
            conditions.set("Degraded", True, "UnsupportedExtensionType", "; ".join(self.unknown))


def nearest_types(written: str, names: Sequence[str]) -> str:
    """What the author of an unknown type may have meant, as the end of a sentence: by kind, whatever the domain."""
    kinds = {_kind(name): name for name in names}
    near = difflib.get_close_matches(_kind(written), list(kinds), n=3, cutoff=0.6)
    if not near:
        return f"`egressproxy filters` has the known ones: {', '.join(map(_kind, names))}"
    return f"did you mean {' or '.join(kinds[kind] for kind in near)}?"


def must_run(spec: ExtensionIR) -> bool:
    """False for an extension of an unknown type with failOpen: requests go on without it."""
    return spec.is_known or not spec.fail_open


def closing(specs: Iterable[ExtensionIR]) -> str:
    """The extensions among these that close their place, in words that a client may read; "" where there is none."""
    found = (f"extension {spec.name} ({spec.type})" for spec in specs if not spec.is_known and must_run(spec))
    return ", ".join(dict.fromkeys(found))


def _kind(name: str) -> str:
    return name.rpartition("/")[2].partition(":")[0]
