"""Extensions, compiled to ExtensionIR.

Three ways to ask for a filter, one mechanism: an `extensions` entry of a Backend or EgressPolicy, a filter of an
HTTPRoute (`route_filters`), an entry of a policy's `limits`. The config of each is checked against the schema of its
type here, so that the data plane meets valid ones only. A Secret that is missing leaves the ExtensionIR without it:
the filter then refuses every request (it fails closed). An unknown type closes the place (`extension_faults`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os.path import dirname
from typing import Any, NamedTuple

from pydantic import ValidationError

from egressproxy.config.compile.extensions.config_problems import config_problems, first_error, settings_adapter
from egressproxy.config.compile.extensions.config_schema import ConfigFault, SchemaError
from egressproxy.config.compile.extensions.extension_faults import ExtensionFaults, misfit_of, secrets_of
from egressproxy.config.compile.extensions.filter_types import DeclaredType, FilterTypes
from egressproxy.config.compile.extensions.ranked_extension import (
    AttachmentPoint,
    ChosenPhase,
    ImpossiblePhase,
    RankedExtension,
    chosen_phase,
)
from egressproxy.config.compile.interface import BackendReference, FilterCatalog, FilterTypeInfo, age_of, problem_at
from egressproxy.config.compile.references import References
from egressproxy.config.explanations import path_text
from egressproxy.config.reading.problems import Problem
from egressproxy.config.resources.backend import WorkingGroupExtension
from egressproxy.config.resources.extension import Extension
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.object_references import BackendObjectReference
from egressproxy.ir.policy import BACKEND_LEVEL, ExtensionIR, FilterSettings
from egressproxy.model.published_object import Key


class FilterNotSupported(Exception):
    """An HTTPRoute filter that this build cannot run; the message names it, `index` is its place in the list."""

    index = 0


class Caller(NamedTuple):
    """The object that declares an extension which calls backends, and their references, each with its field there."""

    owner: Resource
    refs: tuple[tuple[str, BackendReference], ...]


def as_backend_ref(ref: BackendReference) -> BackendObjectReference:
    """A reference of a filter's config as one of the API."""
    return BackendObjectReference.model_construct(
        group=ref.group, kind=ref.kind, name=ref.name, namespace=ref.namespace or None, port=ref.port
    )


class ExtensionCompiler:
    """Turns what was written into ExtensionIR; collects what is a load error and which Secrets are missing."""

    def __init__(self, catalog: FilterCatalog, declared: FilterTypes, references: References) -> None:
        self._catalog = catalog
        self._declared = declared
        self._references = references
        #: What keeps the configuration from being loaded, each problem once.
        self.load_errors: dict[Problem, None] = {}
        self._valid: dict[tuple[str, str], FilterSettings | None] = {}
        #: What is wrong with extensions and is told in status, by declaring object.
        self.faults: dict[Key, ExtensionFaults] = defaultdict(ExtensionFaults)
        #: What is called by extensions whose configs refer to backends.
        self.callers: dict[ExtensionIR, Caller] = {}
        #: Backends of rules that configs name, "namespace/name": each with the object that declares it, and its field.
        self.named_backends: dict[tuple[Key, str, str], None] = {}

    def extensions(
        self, owner: Resource, declared: Sequence[Extension], place: AttachmentPoint, path: str = "spec.extensions"
    ) -> tuple[RankedExtension, ...]:
        """The `spec.extensions` of a Backend or EgressPolicy, or what stands in this field. Load errors are noted."""
        made = [self._extension(owner, one, f"{path}[{i}]", place) for i, one in enumerate(declared)]
        return tuple(RankedExtension(spec, age_of(owner), i) for i, spec in enumerate(made) if spec is not None)

    def builtin(
        self,
        type_name: str,
        name: str,
        phase: str,
        config: Mapping[str, Any],
        owner: Resource,
        place: AttachmentPoint,
        priority: int = 0,
        index: int = 0,
        path: str = "",
    ) -> RankedExtension:
        """A filter of our own that no `extensions` entry asked for; `path` is the field that did. Raises
        FilterNotSupported.
        """
        found = self._catalog.get(type_name)
        if found is None or phase not in _phases(found):
            raise FilterNotSupported(f"{name} needs the filter {type_name} in phase {phase}, which this version lacks")
        text = _canonical(config)
        try:
            settings = self._settings(found, text)
        except ValidationError as error:
            raise FilterNotSupported(f"{name}: {first_error(error)}") from None
        made = partial(
            ExtensionIR,
            name=name,
            type=type_name,
            phase=phase,
            priority=priority,
            level=place.level,
            scope=place.scope,
            source=str(owner),
        )
        spec = self._with_config(made, owner, found, settings, text, path or name)
        return RankedExtension(spec, age_of(owner), index)

    def _extension(
        self, owner: Resource, extension: Extension, path: str, place: AttachmentPoint
    ) -> ExtensionIR | None:
        made = partial(
            ExtensionIR,
            name=extension.label,
            priority=extension.priority,
            level=place.level,
            fail_open=extension.fail_open,
            scope=place.scope,
            source=str(owner),
        )
        declared = self._declared.get(extension.type)
        if declared is not None:
            return self._declared_extension(owner, extension, declared, path, place, made)
        found = self._catalog.get(extension.type)
        if found is None:
            why = self._catalog.why_unusable(extension.type) or self._declared.why_unusable(extension.type)
            return self._unknown(owner, extension, path, place, made, why)
        if not found.package:
            return self._known(owner, extension, found, path, place, made)
        try:
            return self._known(owner, extension, found, path, place, made)
        except Exception as error:  # its schema and what reads its references are the package's: it ends no loading
            # Without the text, which may hold a value of the config.
            why = f"package {found.package}: its config cannot be read ({type(error).__name__})"
            return self._unknown(owner, extension, path, place, made, why)

    def _unknown(
        self,
        owner: Resource,
        extension: Extension,
        path: str,
        place: AttachmentPoint,
        made: Callable[..., ExtensionIR],
        why: str,
    ) -> ExtensionIR:
        """An extension that nothing runs: status says so, and its place is closed unless failOpen is set."""
        usual = "backend-request" if place.level == BACKEND_LEVEL else "request-headers"
        unknown = made(type=extension.type, phase=extension.phase or usual, is_known=False)
        names = (*self._catalog.names(), *self._declared.names())
        self.faults[owner.key].note_unknown(unknown, path, names, why)
        return unknown

    def _known(
        self,
        owner: Resource,
        extension: Extension,
        found: FilterTypeInfo,
        path: str,
        place: AttachmentPoint,
        made: Callable[..., ExtensionIR],
    ) -> ExtensionIR | None:
        """An extension of a type of the catalogue; None where a load error was noted."""
        if found.runs_code and owner.origin.is_from_api:
            # Who may write an object may not run programs: of the file, not even whether it is there is said.
            message = f"{found.name} runs a Python file, and an object that was written through the API must not"
            remedy = "declare it in a manifest in a folder of --config, and put the file beside that"
            self.load_errors[problem_at(owner, f"{path}.type", message, remedy)] = None
            return None
        chosen = self._phase(owner, extension, found.name, _phases(found), path, place)
        if chosen is None:
            return None
        raw, raw_name = _written_config(extension)
        try:
            config = settings_adapter(found.config_model).validate_python(raw)
        except ValidationError as error:
            self.load_errors |= dict.fromkeys(config_problems(owner, found, error, path, raw_name))
            return None
        reached = found.machine_field(config) if owner.origin.is_from_api else ""
        if reached:
            message = f"{reached} leads to this machine, and an object that was written through the API must not"
            remedy = "name a Secret in secretRef, or declare it in a manifest in a folder of --config"
            self.load_errors[problem_at(owner, f"{path}.{raw_name}.{reached}", message, remedy)] = None
            return None
        made = partial(made, type=found.name, **_written_settings(extension, chosen))
        return self._with_config(made, owner, found, config, _canonical(raw), f"{path}.{raw_name}")

    def _with_config(
        self,
        made: Callable[..., ExtensionIR],
        owner: Resource,
        found: FilterTypeInfo,
        config: Any,
        text: str,
        path: str,
        calls_path: str = "",
    ) -> ExtensionIR:
        """The extension with its config (`text` is it as JSON), whose field in `owner` is `path`; what is wrong with it
        is noted in `faults`. Noted are also the backends that it refers to, which each place resolves anew, and those
        that it names: below `calls_path` where that is another field.
        """
        secrets = () if config is None else secrets_of(self._references, owner, found, config, path, self.faults)
        settings = self._settings(found, text)
        spec = made(config=text, secrets=secrets, folder=_folder(owner), settings=settings)
        calls_path = calls_path or path
        refs = found.backend_refs(config)
        if refs:
            self.callers[spec] = Caller(owner, tuple((f"{calls_path}.{where}", ref) for where, ref in refs))
        for where, name in found.backend_names(config):
            full_name = name if "/" in name else f"{owner.namespace}/{name}"
            self.named_backends[owner.key, f"{calls_path}.{where}", full_name] = None
        misfit = misfit_of(self._catalog, spec, found, config, path)
        if misfit is not None:
            self.faults[owner.key].note_misfit(*misfit)
        return spec

    def _declared_extension(
        self,
        owner: Resource,
        extension: Extension,
        declared: DeclaredType,
        path: str,
        place: AttachmentPoint,
        made: Callable[..., ExtensionIR],
    ) -> ExtensionIR | None:
        """An extension of a type that a FilterType makes known."""
        chosen = self._phase(owner, extension, declared.name, declared.phases, path, place)
        if chosen is None:
            return None
        raw, raw_name = _written_config(extension)
        try:
            faults = declared.faults(raw)
        except SchemaError as error:
            faults = [
                ConfigFault((), f"it cannot be checked: {error}", f"change the configSchema of {declared.definition}")
            ]
        for fault in faults:
            where = f"{path}.{path_text((raw_name, *fault.loc))}"
            remedy = fault.remedy or f"`egressproxy filters` shows the fields of {declared.name}"
            self.load_errors[problem_at(owner, where, fault.message, remedy, on_key=fault.on_key)] = None
        if faults:
            return None
        text = _canonical(declared.implemented_config(raw))
        implementation = self._catalog.get(declared.implementation)
        assert implementation is not None
        config = settings_adapter(implementation.config_model).validate_json(text)
        made = partial(
            made,
            type=declared.name,
            implementation=declared.implementation,
            **_written_settings(extension, chosen),
        )
        # What the type calls, the FilterType names: who uses the type needs no right to it.
        calls_path = "spec.processor" if declared.definition.spec.python is None else ""
        return self._with_config(
            made, declared.definition, implementation, config, text, declared.settings_path, calls_path
        )

    def _settings(self, found: FilterTypeInfo, text: str) -> FilterSettings | None:
        """The validated config, one object for equal configs; None for a type of a package, which nothing unpacks.

        Raises ValidationError.
        """
        key = (found.name, text)
        if key not in self._valid:
            config = settings_adapter(found.config_model).validate_json(text)
            is_ours = isinstance(config, FilterSettings) and not found.package
            self._valid[key] = config if is_ours else None
        return self._valid[key]

    def _phase(
        self,
        owner: Resource,
        extension: Extension,
        name: str,
        possible: frozenset[str],
        path: str,
        place: AttachmentPoint,
    ) -> ChosenPhase | None:
        try:
            return chosen_phase(extension, name, possible, place.level)
        except ImpossiblePhase as error:
            self.load_errors[problem_at(owner, f"{path}.phase", str(error), error.remedy)] = None
            return None


def _written_config(extension: Extension) -> tuple[Mapping[str, Any], str]:
    if isinstance(extension, WorkingGroupExtension):
        return extension.settings, "rawConfig" if extension.raw_config else "config"
    return extension.config, "config"


def _written_settings(extension: Extension, chosen: ChosenPhase) -> dict[str, Any]:
    """What an entry of `extensions` says beside name, type and config, as arguments of ExtensionIR."""
    made: dict[str, Any] = {**chosen._asdict(), "pre_auth": extension.pre_auth}
    if extension.timeout is not None:
        made["timeout_s"] = extension.timeout.seconds
    if extension.error_budget is not None:
        made["budget_failures"] = extension.error_budget.failures
        made["budget_window_s"] = extension.error_budget.window.seconds
    return made


def _phases(found: FilterTypeInfo) -> frozenset[str]:
    return frozenset(phase.value for phase in found.phases)


def _canonical(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


def _folder(owner: Resource) -> str:
    """Where the relative paths of its configs start; "" for an object that must not read files."""
    file = "" if owner.origin.is_from_api else owner.origin.file
    return file and (dirname(file) or ".")
