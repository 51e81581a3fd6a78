"""The common base of objects: group, version, kind, metadata, origin.

Models are frozen and strict: an unknown field is an error, and text is no number. Attributes are snake_case with the
manifest's spelling as alias. Defaults are the CRDs', since no API server fills them in. The modules of this folder have
real annotations: pydantic would compile textual ones at every start.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, field_validator
from pydantic.alias_generators import to_camel

from egressproxy.config.resources.values import NULL_IS_EMPTY_MAP, Int, Label, Subdomain, Timestamp
from egressproxy.model.published_object import Key

GATEWAY_GROUP = "gateway.networking.k8s.io"
OUR_GROUP = "egressproxy.io"

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

#: The location of a field: line and column of its value, then of its key.
Spot = tuple[int, int, int, int]


class Model(BaseModel):
    """Base of all parts of a manifest. Rules between fields are in `model_post_init`, which raises RefusedValue.

    A default that is itself a model comes from `model_construct`, which needs no schema at import.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        hide_input_in_errors=True,
        defer_build=True,
    )


class OpenModel(Model):
    """Base of Kubernetes' own types, of which we read a part; unknown fields are accepted."""

    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of an object: `file` as given or found, `line` from 1; both empty for objects made in code.

    `locations` has the fields, by path, that are checked later. `is_from_api`: written through the admin API, whose
    users have fewer rights than the operator's files. `is_from_cluster`: from an API server, which has accepted the
    object already, so it cannot be refused and must not block others. `time` is the file's modification time in RFC
    3339, "" if unknown.
    """

    file: str = ""
    line: int = 0
    locations: Mapping[str, Spot] = field(default_factory=dict, compare=False, repr=False)
    is_from_api: bool = field(default=False, compare=False)
    is_from_cluster: bool = field(default=False, compare=False)
    time: str = field(default="", compare=False)

    @property
    def is_of_option(self) -> bool:
        """Whether a command-line option created the object, from files or variables instead of a manifest."""
        return bool(self.file) and not self.line

    def location_of(self, path: str, *, key: bool = False) -> tuple[int, int]:
        """Line and column of a field's value (or of its key), else of the nearest field above; (0, 0) without file."""
        if not self.file:
            return 0, 0
        while path and path not in self.locations:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
            key = False
        if not path:
            return self.line, 1
        spot = self.locations[path]
        return spot[2:] if key else spot[:2]

    def __str__(self) -> str:
        return (f"{self.file}:{self.line}" if self.line else self.file) or "-"


class ObjectMeta(OpenModel):
    """The part of Kubernetes' ObjectMeta that is read; the rest is ignored."""

    name: Subdomain
    namespace: Label = "default"
    labels: Annotated[dict[str, str], NULL_IS_EMPTY_MAP] = {}
    annotations: Annotated[dict[str, str], NULL_IS_EMPTY_MAP] = {}
    creation_timestamp: Timestamp | None = None
    generation: Int | None = None
    uid: str | None = None
    resource_version: str | None = None

    @field_validator("annotations")
    @classmethod
    def _without_copies(cls, value: dict[str, str]) -> dict[str, str]:
        """Drop kubectl's copy of the whole manifest, which includes a Secret's values."""
        return {name: text for name, text in value.items() if name != LAST_APPLIED}


class Resource(Model):
    """Base of every kind. A subclass names group, kind, versions and scope in its class statement, or inherits them."""

    GROUP: ClassVar[str]
    KIND: ClassVar[str]
    VERSIONS: ClassVar[tuple[str, ...]]
    NAMESPACED: ClassVar[bool] = True
    #: Whether an explicit null counts as an absent field, as in an API server.
    NULLS_ARE_ABSENT: ClassVar[bool] = True

    api_version: str
    kind: str
    metadata: Annotated[ObjectMeta, NULL_IS_EMPTY_MAP]
    #: Written by us, ignored on input.
    status: Annotated[Any, BeforeValidator(lambda _: None)] = Field(default=None, exclude=True, repr=False)

    _origin: Origin = PrivateAttr(default_factory=Origin)
    _raw: dict[str, Any] | None = PrivateAttr(default=None)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        for name in kwargs.keys() & {"group", "kind", "versions", "namespaced"}:
            setattr(cls, name.upper(), kwargs.pop(name))
        super().__init_subclass__(**kwargs)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """The namespace, "" for a cluster-scoped kind."""
        return self.metadata.namespace if self.NAMESPACED else ""

    @property
    def key(self) -> Key:
        """Group, kind, namespace ("" for a cluster-scoped kind) and name."""
        return (self.GROUP, self.KIND, self.namespace, self.metadata.name)

    @property
    def full_name(self) -> str:
        """`namespace/name`, or the name alone for a cluster-scoped kind."""
        return f"{self.metadata.namespace}/{self.metadata.name}" if self.NAMESPACED else self.metadata.name

    @property
    def origin(self) -> Origin:
        return self._origin

    def written(self, raw: Mapping[str, Any], origin: Origin) -> None:
        """Store the manifest and its origin. For the loader, right after validation."""
        self._raw = self._redact(dict(raw))
        self._origin = origin

    def to_manifest(self) -> dict[str, Any]:
        """The object in Kubernetes' shape, as written, with its namespace, without status and without secret values.

        The parts below `metadata` and `spec` are shared: the caller must not change them.
        """
        made = dict(self._raw or self._redact(self.model_dump(mode="json", by_alias=True, exclude_unset=True)))
        made["apiVersion"], made["kind"] = self.api_version, self.kind
        made.pop("status", None)
        metadata = dict(made.get("metadata") or {})
        if self.NAMESPACED:
            metadata["namespace"] = self.metadata.namespace
        else:
            metadata.pop("namespace", None)
        made["metadata"] = metadata
        return made

    def _redact(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Hook for kinds whose manifest holds secrets."""
        return raw

    def __eq__(self, other: object) -> bool:
        """Equality of content, regardless of origin."""
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return f"{self.KIND} {self.full_name}"


#: Fields with a filter's own data or a JSON schema, in which null may have a meaning.
_FREE_FORM = frozenset({"config", "rawConfig", "inline"})


def without_nulls(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest as stored by an API server: without null fields. `metadata` itself is unchanged."""
    return {name: _without_nulls(value) for name, value in manifest.items() if value is not None or name == "metadata"}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: each if name in _FREE_FORM else _without_nulls(each)
            for name, each in value.items()
            if each is not None
        }
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value


class LabelSelectorRequirement(Model):
    key: str
    """The key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """In and NotIn compare the label's value with `values`; Exists and DoesNotExist test the key alone."""
    values: tuple[str, ...] = ()
    """For In and NotIn."""


class LabelSelector(Model):
    """metav1.LabelSelector: all conditions must hold; empty selects all objects."""

    match_labels: dict[str, str] = {}
    """The required labels and values."""
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()
    """Further conditions on labels."""

    @property
    def keys(self) -> set[str]:
        """The label keys in the selector."""
        return {*self.match_labels, *(each.key for each in self.match_expressions)}

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(labels.get(k) == v for k, v in self.match_labels.items()) and all(
            _holds(requirement, labels) for requirement in self.match_expressions
        )


def _holds(requirement: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    return {
        "In": value in requirement.values,
        "NotIn": value not in requirement.values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[requirement.operator]
