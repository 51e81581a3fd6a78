"""The compiler's inputs and result: values only. The application provides filter types through FilterCatalog."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from egressproxy.config.otlp_environment import NO_TELEMETRY, OtlpSettings
from egressproxy.config.reading.problems import Problem, Severity
from egressproxy.config.resources.meta import OUR_GROUP, Resource
from egressproxy.errors import Denied
from egressproxy.ir.backend import BackendIR
from egressproxy.ir.gateway import ConfigIR
from egressproxy.ir.policy import ExtensionIR, PolicyIR
from egressproxy.model.certificate import Validity
from egressproxy.model.published_object import Key

#: `GatewayClass.spec.controllerName` of the classes that are ours, and the name under which we write status.
CONTROLLER = "egressproxy.io/gateway-controller"
#: The default GatewayClass of a configuration without one.
BUILTIN_CLASS: Final = "egressproxy"
#: Namespace and name of the ConfigMap with the catalogue of filter types, which the gateway makes.
CATALOG: Final = ("egressproxy-system", "egressproxy-filter-catalog")

#: Kinds that several groups have.
_OF_SEVERAL_GROUPS: Final = frozenset({"Backend", "PayloadProcessingPipeline", "XBackendDestination"})

#: The contents of files: kind, namespace, name and keys of their object -> the value of each key.
Materials = Mapping[tuple[str, ...], tuple[bytes, ...]]
#: The `status` of an object as Kubernetes shapes it.
Status = dict[str, Any]


class Reference(Protocol):
    """A reference to an object; some have `namespace` and `port`, too. Group "" is the core group."""

    @property
    def group(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...


class SecretReference(Reference, Protocol):
    """A filter config's reference to an entry of a Secret (a `secretRef`)."""

    @property
    def namespace(self) -> str: ...  # "": that of the declaring object
    @property
    def key(self) -> str: ...  # "": not said
    @property
    def is_document(self) -> bool: ...  # the value may have more than one line: a key in PEM, JSON
    @property
    def label(self) -> str: ...  # under which the filter finds the value


class BackendReference(Reference, Protocol):
    """A backend that a filter calls, as its config names it (a `backendRef`)."""

    @property
    def namespace(self) -> str: ...  # "": that of the declaring object
    @property
    def port(self) -> int | None: ...  # of a Service
    @property
    def label(self) -> str: ...  # under which the filter finds the call
    @property
    def is_grpc(self) -> bool: ...  # called over gRPC


class FilterTypeInfo(Protocol):
    """The compiler's view of a filter type, `domain/Kind:version`.

    `phases` are members of `filters.base.Phase`. `config_model` is a pydantic model, or a dataclass for pydantic. Of a
    config, `secret_refs` are the referenced Secrets, `backend_refs` the referenced backends with their fields,
    `backend_names` the named backends of rules, and `machine_field` is the field with a file, variable or program of
    this machine, "" for none. `package` is the installed package of the type, "" for a type of ours. `runs_code`: a
    config names code of the operator. `stands_for`: further phases of published manifests, with implied settings.
    """

    @property
    def name(self) -> str: ...
    @property
    def phases(self) -> frozenset[Enum]: ...
    @property
    def config_model(self) -> type[Any]: ...
    @property
    def secret_refs(self) -> Callable[[Any], tuple[SecretReference, ...]]: ...
    @property
    def backend_refs(self) -> Callable[[Any], tuple[tuple[str, BackendReference], ...]]: ...
    @property
    def backend_names(self) -> Callable[[Any], tuple[tuple[str, str], ...]]: ...
    @property
    def stands_for(self) -> Mapping[Any, Mapping[str, str]]: ...
    @property
    def machine_field(self) -> Callable[[Any], str]: ...
    @property
    def package(self) -> str: ...
    @property
    def runs_code(self) -> bool: ...


class FilterCatalog(Protocol):
    """The filter types that this build has."""

    def names(self) -> Sequence[str]: ...
    def get(self, type_name: str, /) -> FilterTypeInfo | None: ...
    def why_unusable(self, type_name: str, /) -> str:
        """Why a type of an installed package is unusable, "" if no package has it."""

    def misfit(self, spec: ExtensionIR, config: Any, /) -> tuple[str, SecretReference | None] | None:
        """Why a value that a config refers to does not fit the filter, and its Secret; None if no fault is known."""

    def support(self, type_name: str, /) -> str:
        """The support level of a type, in Gateway API's words: core, extended or implementation-specific."""


#: Returns why the data plane denies requests to a backend; None if it does not.
RefusesBackends = Callable[[BackendIR], Denied | None]


@dataclass(frozen=True, slots=True)
class Defaults:
    """The application's settings for the compiler.

    `bind_addresses` are IP literals and networks (see `addresses`) for Gateways without `spec.addresses`.
    `check_pattern` raises ValueError for a regular expression that the data plane does not accept; the default accepts
    all. `why_unusable` returns why this machine cannot bind an IP address, or has no such interface, "" if it can.
    `can_take_any_certificate` returns whether a TLS server can accept clients with invalid certificates (GEP-91
    AllowInsecureFallback). `denials` returns for a policy the function that says why it denies a backend for all
    clients; the default denies nothing.
    `system_roots` is the mark of the system's CA certificates. `unbound` are the addresses and ports that could not be
    bound, with reasons; a cluster's listeners there are not served. `gateway_namespaces` limits the namespaces whose
    Gateways and ListenerSets are read from a cluster; empty: all. `experimental` permits what provisional GEPs define.
    `has_service`: a Service with a cluster IP is in front of the gateway. `telemetry`: for Gateways without a policy,
    and for the process.
    """

    bind_addresses: tuple[str, ...] = ("127.0.0.1",)
    check_pattern: Callable[[str], object] = lambda _pattern: None
    why_unusable: Callable[[str], str] = lambda _address: ""
    can_take_any_certificate: Callable[[], bool] = lambda: False
    denials: Callable[[PolicyIR], RefusesBackends] = lambda _policy: lambda _backend: None
    system_roots: str = ""
    unbound: Mapping[tuple[str, int], str] = field(default_factory=dict)
    gateway_namespaces: tuple[str, ...] = ()
    experimental: bool = False
    has_service: bool = False
    telemetry: OtlpSettings = NO_TELEMETRY


@dataclass(frozen=True, slots=True)
class Compiled:
    """A configuration ready to be put into service.

    `statuses` holds the new status of every object that has one; `generations` the `metadata.generation` of every
    object with a spec; `written` the digests of those specs. `warnings` are about objects without a status.
    `validities` are those of all certificates. `created` is the RFC 3339 time at which an object without a
    creationTimestamp was first seen; it is shown to users and does not decide which object is older. `filter_types`
    describes the types that FilterType objects make known, by name, as the catalogue shows them. `materials`, which
    holds secrets, is the content of certificate files, for the next compilation. A result with `problems` must not be
    served; it is only for reports. `users` are the Gateways whose routes lead to a backend; `published_status` converts
    a status to its public form.
    """

    spec: ConfigIR
    statuses: Mapping[Key, Status] = field(default_factory=dict)
    generations: Mapping[Key, int] = field(default_factory=dict)
    warnings: tuple[Problem, ...] = ()
    written: Mapping[Key, bytes] = field(default_factory=dict, repr=False)
    validities: tuple[Validity, ...] = ()
    created: Mapping[Key, str] = field(default_factory=dict, repr=False)
    filter_types: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    materials: Materials = field(default_factory=dict, repr=False)
    problems: tuple[Problem, ...] = ()
    users: Mapping[Key, Collection[Key]] = field(default_factory=dict, repr=False)


def kind_of(key: Key) -> str:
    """The kind and its group, in kubectl's form: `Backend.egressproxy.io`; the kind alone for the core group."""
    return f"{key[1]}.{key[0]}" if key[0] else key[1]


def scope_of(key: Key) -> str:
    """The scope of an object's counters: `Kind namespace/name`, with the group if our group has the kind, too."""
    group, kind, namespace, name = key
    return f"{f'{kind}.{group}' if kind in _OF_SEVERAL_GROUPS and group != OUR_GROUP else kind} {namespace}/{name}"


def age_of(resource: Resource) -> tuple[str, str]:
    """The sort key where the older object wins: creationTimestamp (objects without one last), then namespace/name.

    Objects of a cluster sort last, so that they cannot displace objects of the operator's files.
    """
    behind = "~~" if resource.origin.is_from_cluster else ""
    return (behind + (resource.metadata.creation_timestamp or "~"), resource.full_name)


def problem_at(
    resource: Resource,
    field_path: str,
    message: str,
    remedy: str = "",
    *,
    on_key: bool = False,
    severity: Severity = Severity.ERROR,
    code: str = "Invalid",
) -> Problem:
    """A problem of one field of an object (or of its key), with file, line and column if they are known."""
    line, column = resource.origin.location_of(field_path, key=on_key)
    return Problem(resource.origin.file, line, column, str(resource), field_path, message, remedy, severity, code)


def unserved(resource: Resource, field_path: str, message: str, remedy: str, code: str) -> Problem:
    """A problem of an unserved field, for an object without status."""
    return problem_at(resource, field_path, message, remedy, severity=Severity.UNSERVED, code=code)
