"""Faults in the extensions of an object that are not load errors: unknown types, and Secrets that cannot be used.

Source: the egress proposal of Kubernetes' AI Gateway working group (`Degraded`, `UnsupportedExtensionType`), Gateway
API v1 (`ResolvedRefs`, `RefNotPermitted`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from egressproxy.config.compile.interface import FilterCatalog, FilterTypeInfo
from egressproxy.config.compile.references import References, UnresolvedRef
from egressproxy.config.compile.status.conditions import Conditions
from egressproxy.config.reading.problems import Problem
from egressproxy.config.resources.meta import Resource
from egressproxy.ir.policy import ExtensionIR, settings_in
from egressproxy.model.fields import VALUE
from egressproxy.model.published_object import Key
from egressproxy.model.secret import SecretBytes

#: The types whose Secret becomes part of a field line, where a line break would start another one.
INJECTOR: Final = "egressproxy.io/CredentialInjector:"
#: The end of the path of its field for the backend that is sent tokens of clients.
EXCHANGE_ENDPOINT: Final = ".tokenExchange.tokenEndpoint.backendRef"
#: Trailing whitespace of a Secret, which the injector strips.
_SPACE: Final = b" \t\r\n"


@dataclass(slots=True)
class ExtensionFaults:
    """`unknown`: sentences about types; `unresolved`: (reason, sentence) of Secrets and called backends."""

    unknown: dict[str, None] = field(default_factory=dict)
    unresolved: dict[tuple[str, str], None] = field(default_factory=dict)

    def note_unknown(self, spec: ExtensionIR, path: str, names: Sequence[str], why: str = "") -> None:
        """An extension (whose field is `path`) of a type that is not among these names, or cannot be used (`why`)."""
        known = why or nearest_types(spec.type, names)
        unknown = f"the type {spec.type}, which cannot be used" if why else f"the unknown type {spec.type}"
        sentence = f"{path}.type: extension {spec.name} has {unknown}: {_follows(spec)}; {known}"
        self.unknown[sentence] = None

    def note_unfit(self, spec: ExtensionIR, problems: Iterable[Problem]) -> None:
        """An extension of a known type that does not support its config."""
        for each in problems:
            remedy = f" ({each.remedy})" if each.remedy else ""
            self.unknown[f"{each.field_path}: {each.message}{remedy}: {_follows(spec)}"] = None

    def note_secret(self, unresolved: UnresolvedRef, path: str) -> None:
        """A Secret without a usable value; `path` is its field."""
        sentence = f"{unresolved.with_hint}; requests are refused"
        if unresolved.reason == "SecretNotFound":
            sentence = f"missing: {unresolved.with_hint}; until it is there, requests are refused"
        self.unresolved[unresolved.reason, f"{path}: {sentence}"] = None

    def note_misfit(self, why: str, path: str) -> None:
        """A Secret or variable that exists and does not fit its filter; `path` is its field."""
        self.unresolved["InvalidSecret", f"{path}: {why}; until it is mended, requests are refused"] = None

    def note_backend(self, unresolved: UnresolvedRef, path: str) -> None:
        """A backend that a filter cannot call; `path` is its field."""
        self.unresolved[unresolved.reason, f"{path}: {unresolved.with_hint}; filters that call the backend fail"] = None

    def note_own_backend(self, path: str) -> None:
        """A credential that would be fetched from the Backend that needs it; `path` is its field."""
        sentence = f"{path}: the filter cannot ask its own Backend: name another one; requests are refused"
        self.unresolved["UnsupportedValue", sentence] = None

    def note_token_endpoint(self, name: str, path: str) -> None:
        """A token endpoint that no policy lets have the tokens of clients; `path` is its field."""
        sentence = f"{path}: no policy names {name} in identity.token.exchangeAt, so that requests are refused"
        self.unresolved["RefNotPermitted", sentence] = None

    def note_name(self, name: str, path: str) -> None:
        """A missing backend that a filter chooses or excludes; `path` is its field."""
        sentence = f"{path}: no backend {name} exists, so this has no effect; write `name`, or `namespace/name`"
        self.unresolved["BackendNotFound", sentence] = None

    def set_conditions(self, conditions: Conditions) -> None:
        """Add the faults to ResolvedRefs and Degraded."""
        for reason, message in self.unresolved:
            conditions.fail("ResolvedRefs", reason, message)
        if self.unknown:
            conditions.set("Degraded", True, "UnsupportedExtensionType", "; ".join(self.unknown))


def _follows(spec: ExtensionIR) -> str:
    return "requests go on without it (failOpen)" if spec.fail_open else "requests that need it are refused"


def nearest_types(written: str, names: Sequence[str]) -> str:
    """Suggestions for an unknown type, as the end of a sentence: by kind, in any domain."""
    kinds = {_kind(name): name for name in names}
    near = difflib.get_close_matches(_kind(written), list(kinds), n=3, cutoff=0.6)
    if not near:
        return f"`egressproxy filters` has the known ones: {', '.join(map(_kind, names))}"
    return f"did you mean {' or '.join(kinds[kind] for kind in near)}?"


def must_run(spec: ExtensionIR) -> bool:
    """False for an extension of an unknown type with failOpen: requests go on without it."""
    return spec.is_known or not spec.fail_open


def closing(specs: Iterable[ExtensionIR]) -> str:
    """The extensions that close their place, in words for clients; "" for none."""
    found = (f"extension {spec.name} ({spec.type})" for spec in specs if not spec.is_known and must_run(spec))
    return ", ".join(dict.fromkeys(found))


def secrets_of(
    references: References,
    owner: Resource,
    found: FilterTypeInfo,
    config: Any,
    path: str,
    faults: Mapping[Key, ExtensionFaults],
) -> tuple[tuple[str, SecretBytes], ...]:
    """The labels and values of the existing Secrets that a config of this type refers to (`path`: its field in
    `owner`). Missing ones are noted in `faults`.
    """
    secrets = []
    for ref in found.secret_refs(config):
        try:
            value = references.secret_value(owner, ref)
            is_line = found.name.startswith(INJECTOR) and not ref.is_document
            if is_line and not VALUE.fullmatch(value.reveal().strip(_SPACE)):
                # An inner line break would inject a field into every request (RFC 9110 section 5.5).
                where = f"{references.namespace_of(owner, ref)}/{ref.name} key {ref.key or '(the only one)'}"
                why = "it holds a line break or another control character; store the credential alone, on one line"
                raise UnresolvedRef("SecretNotFound", f"a usable value of Secret {where} ({why})")
        except UnresolvedRef as unresolved:
            faults[owner.key].note_secret(unresolved, f"{path}.{_field_of(config, ref) or 'secretRef'}")
            continue
        secrets.append((ref.label, value))
    return tuple(dict.fromkeys(secrets))


def misfit_of(
    catalog: FilterCatalog, spec: ExtensionIR, found: FilterTypeInfo, config: Any, path: str
) -> tuple[str, str] | None:
    """The reason and the field of an existing value that does not fit the filter (`path`: the config's field). None if
    all fit, if one is missing (noted by `secrets_of`), and for a config of None.
    """
    if config is None:
        return None
    labels = {ref.label for ref in found.secret_refs(config)}
    if labels != dict(spec.secrets).keys() or not (labels or found.machine_field(config)):
        return None
    misfit = catalog.misfit(spec, config)
    if misfit is None:
        return None
    why, ref = misfit
    field = _field_of(config, ref) if ref is not None else found.machine_field(config)
    return why, f"{path}.{field}" if field else path


def _kind(name: str) -> str:
    return name.rpartition("/")[2].partition(":")[0]


def _field_of(config: Any, ref: object) -> str:
    """The field of a config that holds this reference, as in `basic.usernameRef` and `secrets[0]`; "" for none."""
    return next((name for name, value in settings_in(config) if value is ref), "")
