"""Extensions, compiled to ExtensionIR.

Three sources of filters share one mechanism: an `extensions` entry of a Backend or EgressPolicy, a filter of an
HTTPRoute (`route_filters`), and an entry of a policy's `limits`. Each config is checked against the schema of its type,
so the data plane gets only valid ones. A missing Secret is missing in the ExtensionIR: the filter then refuses every
request (it fails closed). An unknown type closes the place (`extension_faults`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os.path import dirname
from typing import Any, NamedTuple

from pydantic import ValidationError

from egressproxy.config.compile.extensions.config_schema import (
    ConfigFault,
    SchemaError,
    config_problems,
    first_error,
    settings_adapter,
)
from egressproxy.config.compile.extensions.extension_faults import ExtensionFaults, misfit_of, secrets_of
from egressproxy.config.compile.extensions.filter_types import DeclaredType, FilterTypes
from egressproxy.config.compile.extensions.ranked_extension import (
    AttachmentPoint,
    ImpossiblePhase,
    RankedExtension,
    chosen_phase,
)
from egressproxy.config.compile.interface import BackendReference, FilterCatalog, FilterTypeInfo, age_of, problem_at
from egressproxy.config.compile.references import References
from egressproxy.config.explanations import path_text
from egressproxy.config.reading.problems import ConfigError, Problem
from egressproxy.config.resources.backend import WorkingGroupExtension
from egressproxy.config.resources.extension import PHASES, Extension
from egressproxy.config.resources.meta import OUR_GROUP, Resource
from egressproxy.config.resources.object_references import BackendObjectReference
from egressproxy.ir.policy import BACKEND_LEVEL, ExtensionIR, FilterSettings
from egressproxy.model.published_object import Key


class FilterNotSupported(Exception):
    """An HTTPRoute filter that this build cannot run; the message names it, `index` is its position in the list."""

    index = 0


class Caller(NamedTuple):
    """The object that declares an extension with calls of backends, and their references with fields."""

    owner: Resource
    refs: tuple[tuple[str, BackendReference], ...]


def as_backend_ref(ref: BackendReference) -> BackendObjectReference:
    """A reference of a filter's config as one of the API."""
    return BackendObjectReference.model_construct(
        group=ref.group, kind=ref.kind, name=ref.name, namespace=ref.namespace or None, port=ref.port
    )


class ExtensionCompiler:
    """Compiles filters to ExtensionIR; collects load errors and missing Secrets."""

    def __init__(self, catalog: FilterCatalog, declared: FilterTypes, references: References) -> None:
        self._catalog = catalog
        self._declared = declared
        self._references = references
        #: The problems that refuse the configuration, each once.
        self.load_errors: dict[Problem, None] = {}
        self._valid: dict[tuple[str, str], FilterSettings | None] = {}
        #: The faults of extensions for status, by declaring object.
        self.faults: dict[Key, ExtensionFaults] = defaultdict(ExtensionFaults)
        #: The calls of extensions whose configs refer to backends.
        self.callers: dict[ExtensionIR, Caller] = {}
        #: The rule backends ("namespace/name") that configs name: declaring object, name, field.
        self.named_backends: dict[tuple[Key, str, str], None] = {}

    def extensions(
        self, owner: Resource, declared: Sequence[Extension], attachment: AttachmentPoint, path: str = "spec.extensions"
    ) -> tuple[RankedExtension, ...]:
        """The `spec.extensions` of a Backend or EgressPolicy, or the entries of another field. Notes load errors."""
        made = [self._extension(_Entry(owner, one, f"{path}[{i}]", attachment)) for i, one in enumerate(declared)]
        return tuple(RankedExtension(spec, age_of(owner), i) for i, spec in enumerate(made) if spec is not None)

    def builtin(
        self,
        type_name: str,
        name: str,
        phase: str,
        config: Mapping[str, Any],
        owner: Resource,
        attachment: AttachmentPoint,
        priority: int = 0,
        index: int = 0,
        path: str = "",
    ) -> RankedExtension:
        """A built-in filter for another field than `extensions`, at `path`. Raises FilterNotSupported."""
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
            level=attachment.level,
            scope=attachment.scope,
            source=str(owner),
        )
        spec = self._with_config(made, owner, found, settings, text, path or name)
        return RankedExtension(spec, age_of(owner), index)

    def misfit(self, spec: ExtensionIR) -> str:
        """Why the filter of a built-in type does not take its config, "" if it does, or if no fault is known."""
        found = self._catalog.misfit(spec, spec.settings)
        return "" if found is None else found[0]

    def _extension(self, entry: _Entry) -> ExtensionIR | None:
        """The compiled entry; None after a load error."""
        try:
            return self._compiled(entry)
        except ConfigError as refused:
            if entry.owner.origin.is_from_cluster:
                return self._unfit(entry, refused, must_run=True)
            self.load_errors |= dict.fromkeys(refused.problems)
            return None

    def _compiled(self, entry: _Entry) -> ExtensionIR:
        """Raises ConfigError."""
        type_name = entry.written.type
        declared = self._declared.get(type_name)
        if declared is not None:
            return self._declared_extension(entry, declared)
        found = self._catalog.get(type_name)
        if found is None:
            return self._unknown(entry, self._catalog.why_unusable(type_name) or self._declared.why_unusable(type_name))
        try:
            return self._known(entry, found)
        except ConfigError:
            raise
        except Exception as error:  # the code of a package must not end the load
            if not found.package:
                raise
            # Without the text, which may contain a value of the config.
            why = f"package {found.package}: its config cannot be read ({type(error).__name__})"
            return self._unknown(entry, why)

    def _unknown(self, entry: _Entry, why: str) -> ExtensionIR:
        """An extension of an unknown type: reported in status; its place is closed unless failOpen is set."""
        unknown = entry.closed()
        names = (*self._catalog.names(), *self._declared.names())
        self.faults[entry.owner.key].note_unknown(unknown, entry.path, names, why)
        return unknown

    def _unfit(self, entry: _Entry, refused: ConfigError, *, must_run: bool = False) -> ExtensionIR:
        """`_unknown` for a published type name with an unsupported config, of which a vendor may know more. With
        `must_run` its place is closed regardless of failOpen.
        """
        unfit = entry.closed()
        if must_run:
            unfit = replace(unfit, fail_open=False)
        self.faults[entry.owner.key].note_unfit(unfit, refused.problems)
        return unfit

    def _known(self, entry: _Entry, found: FilterTypeInfo) -> ExtensionIR:
        """An extension of a type of the catalogue. Raises ConfigError."""
        owner = entry.owner
        if found.runs_code and owner.origin.is_from_api:
            # Writers of objects must not run programs, nor learn whether a file exists.
            message = f"{found.name} runs a Python file, and an object that was written through the API must not"
            remedy = "declare it in a manifest in a folder of --config, and put the file beside that"
            raise entry.error("type", message, remedy)
        raw, field = entry.config
        try:
            entry, raw = entry.in_own_phase(found, raw, field)
            settings = entry.settings(found.name, _phases(found))
            config = settings_adapter(found.config_model).validate_python(raw)
        except ConfigError as refused:
            if entry.is_ours:
                raise
            return self._unfit(entry, refused)
        except ValidationError as error:
            faults = ConfigError(config_problems(owner, found, error, entry.path, field))
            if entry.is_ours or found.package:
                raise faults from None
            return self._unfit(entry, faults)
        reached = found.machine_field(config) if owner.origin.is_from_api else ""
        if reached:
            message = f"{reached} leads to this machine, and an object that was written through the API must not"
            remedy = "name a Secret in secretRef, or declare it in a manifest in a folder of --config"
            raise entry.error(f"{field}.{reached}", message, remedy)
        made = entry.made(type=found.name, **settings)
        return self._with_config(made, owner, found, config, _canonical(raw), f"{entry.path}.{field}")

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
        """The extension with its config (`text`: as JSON), whose field in `owner` is `path`. Notes faults, the backends
        it refers to, which each place resolves anew, and the backends it names, below `calls_path` if set.
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

    def _declared_extension(self, entry: _Entry, declared: DeclaredType) -> ExtensionIR:
        """An extension of a FilterType's type. Raises ConfigError."""
        try:
            settings = entry.settings(declared.name, declared.phases)
        except ConfigError as refused:
            return self._unfit(entry, refused)
        raw, field = entry.config
        try:
            faults = declared.faults(raw)
        except SchemaError as error:
            faults = [
                ConfigFault((), f"it cannot be checked: {error}", f"change the configSchema of {declared.definition}")
            ]
        if faults:
            remedy = f"`egressproxy filters` shows the fields of {declared.name}"
            paths = (f"{entry.path}.{path_text((field, *fault.loc))}" for fault in faults)
            raise ConfigError(
                problem_at(entry.owner, path, fault.message, fault.remedy or remedy, on_key=fault.on_key)
                for path, fault in zip(paths, faults, strict=True)
            )
        text = _canonical(declared.implemented_config(raw, settings["phase"]))
        settings |= declared.placed(settings["phase"], entry.attachment.level)
        implementation = self._catalog.get(declared.implementation)
        assert implementation is not None
        config = settings_adapter(implementation.config_model).validate_json(text)
        made = entry.made(type=declared.name, implementation=declared.implementation, **settings)
        # The FilterType names the called backend, so users of the type need no grant.
        calls_path = "spec.processor" if declared.definition.spec.python is None else ""
        return self._with_config(
            made, declared.definition, implementation, config, text, declared.settings_path, calls_path
        )

    def _settings(self, found: FilterTypeInfo, text: str) -> FilterSettings | None:
        """The valid config, one object for equal ones; None for a package's type. Raises ValidationError."""
        key = (found.name, text)
        if key not in self._valid:
            config = settings_adapter(found.config_model).validate_json(text)
            is_ours = isinstance(config, FilterSettings) and not found.package
            self._valid[key] = config if is_ours else None
        return self._valid[key]


class _Entry(NamedTuple):
    """An entry of `extensions` of `owner`, at `path`."""

    owner: Resource
    written: Extension
    path: str
    attachment: AttachmentPoint

    @property
    def config(self) -> tuple[Mapping[str, Any], str]:
        """The config as written, and the name of its field."""
        if isinstance(self.written, WorkingGroupExtension):
            return self.written.settings, "rawConfig" if self.written.raw_config else "config"
        return self.written.config, "config"

    def in_own_phase(
        self, found: FilterTypeInfo, raw: Mapping[str, Any], field: str
    ) -> tuple[_Entry, Mapping[str, Any]]:
        """The entry as it stands for one of the type's own phases, and its config. Raises ConfigError."""
        phase = self.written.phase
        implied = next((each for other, each in found.stands_for.items() if other.value == phase), None)
        if implied is None:
            return self, raw
        for name, value in implied.items():
            if raw.get(name, value) != value:
                message = f"{found.name} in phase {phase} is {name}: {value}, and {raw[name]} is written"
                raise self.error(f"{field}.{name}", message, f"remove {name}, or change the phase")
        return self._replace(written=self.written.model_copy(update={"phase": "request-headers"})), {**implied, **raw}

    def settings(self, name: str, possible: frozenset[str]) -> dict[str, Any]:
        """Arguments of ExtensionIR, of a type called `name` that runs in `possible` phases. Raises ConfigError."""
        extension = self.written
        try:
            chosen = chosen_phase(extension, name, possible, self.attachment.level)
        except ImpossiblePhase as error:
            raise self.error("phase", str(error), error.remedy) from None
        made: dict[str, Any] = {**chosen._asdict(), "pre_auth": extension.pre_auth}
        if extension.timeout is not None:
            made["timeout_s"] = extension.timeout.seconds
        if extension.error_budget is not None:
            made["budget_failures"] = extension.error_budget.failures
            made["budget_window_s"] = extension.error_budget.window.seconds
        return made

    def made(self, **more: Any) -> Callable[..., ExtensionIR]:
        """A factory of the ExtensionIR without its config."""
        extension, attachment = self.written, self.attachment
        return partial(
            ExtensionIR,
            name=extension.label,
            priority=extension.priority,
            level=attachment.level,
            fail_open=extension.fail_open,
            scope=attachment.scope,
            source=str(self.owner),
            **more,
        )

    @property
    def is_ours(self) -> bool:
        """Whether the type has our own name, not a published name or a vendor's."""
        domain, has_domain, _ = self.written.type.rpartition("/")
        return domain == OUR_GROUP or (not has_domain and self.owner.GROUP == OUR_GROUP)

    def closed(self) -> ExtensionIR:
        """An extension that never runs and closes its place."""
        phase = self.written.phase
        if phase not in PHASES:
            phase = "backend-request" if self.attachment.level == BACKEND_LEVEL else "request-headers"
        return self.made(type=self.written.type, phase=phase, is_known=False)()

    def error(self, field: str, message: str, remedy: str) -> ConfigError:
        """A problem of one field of the entry."""
        return ConfigError([problem_at(self.owner, f"{self.path}.{field}", message, remedy)])


def _phases(found: FilterTypeInfo) -> frozenset[str]:
    return frozenset(phase.value for phase in found.phases)


def _canonical(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


def _folder(owner: Resource) -> str:
    """The base of relative paths in configs; "" for an object that must not read files."""
    file = "" if owner.origin.is_from_api else owner.origin.file
    return file and (dirname(file) or ".")
