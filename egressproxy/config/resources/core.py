"""The parts of Kubernetes' own kinds that are read.

Other fields are accepted, since real manifests have them. A Secret's values are `model.secret.SecretBytes` from
decoding on; its stored manifest has redacted values.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from egressproxy.config.resources.meta import LAST_APPLIED, Model, ObjectMeta, OpenModel, Resource
from egressproxy.config.resources.values import (
    NULL_IS_EMPTY_LIST,
    NULL_IS_EMPTY_MAP,
    Bool,
    Name,
    Port,
    SecretText,
    SecretValue,
)
from egressproxy.model.secret import SecretBytes

REDACTED = "cmVkYWN0ZWQ="  # base64 of "redacted": clients of an API decode it


class _Core(Resource, group="", versions=("v1",)):
    """Base of Kubernetes' own kinds; unknown fields are accepted."""

    model_config = ConfigDict(extra="ignore")


class Namespace(_Core, kind="Namespace", namespaced=False):
    """A namespace, whose labels are matched by `from: Selector`."""


class Secret(_Core, kind="Secret"):
    """A Secret. Values never appear in text, errors or manifests."""

    type: str = "Opaque"
    data: Annotated[dict[str, SecretValue], NULL_IS_EMPTY_MAP] = Field(default_factory=dict, repr=False)
    string_data: Annotated[dict[str, SecretText], NULL_IS_EMPTY_MAP] = Field(default_factory=dict, repr=False)
    immutable: Bool | None = None

    def value(self, key: str) -> SecretBytes | None:
        """The value of a key; `stringData` overrides `data`, as in an API server."""
        return self.string_data.get(key, self.data.get(key))

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of its entries, sorted."""
        return tuple(sorted({*self.data, *self.string_data}))

    def _redact(self, raw: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in raw.items() if name in ("apiVersion", "kind", "type", "immutable")}
        metadata = dict(raw.get("metadata") or {})
        if "annotations" in metadata:
            metadata["annotations"] = _redacted(metadata["annotations"])
        return {**kept, "metadata": metadata, "data": dict.fromkeys(self.keys, REDACTED)}


def _redacted(annotations: Mapping[str, Any] | None) -> dict[str, str]:
    """The annotations without values: kubectl and other tools keep a copy of the whole object in an annotation."""
    return {name: "redacted" for name in annotations or () if name != LAST_APPLIED}


class ConfigMap(_Core, kind="ConfigMap"):
    data: Annotated[dict[str, str], NULL_IS_EMPTY_MAP] = Field(default_factory=dict)
    binary_data: Annotated[dict[str, str], NULL_IS_EMPTY_MAP] = Field(default_factory=dict)


class ServiceAccount(_Core, kind="ServiceAccount"):
    """Named by Pods, for identity."""


class ServicePort(OpenModel):
    """`targetPort`: the number or the name of the port at the endpoints; None: the same number."""

    name: str = ""
    port: Port
    target_port: int | str | None = None
    protocol: str = "TCP"
    app_protocol: str | None = None


class ServiceSpec(OpenModel):
    type: str = "ClusterIP"
    cluster_ip: Annotated[str | None, Field(alias="clusterIP")] = None
    cluster_ips: Annotated[tuple[str, ...], Field(alias="clusterIPs")] = ()
    external_name: str | None = None
    ports: tuple[ServicePort, ...] = ()
    selector: Annotated[dict[str, str], NULL_IS_EMPTY_MAP] = Field(default_factory=dict)


class Service(_Core, kind="Service"):
    spec: ServiceSpec = ServiceSpec.model_construct()


class PodIp(OpenModel):
    ip: str


class PodSpec(OpenModel):
    service_account_name: Name = "default"
    host_network: Bool = False


class PodCondition(OpenModel):
    type: str
    status: str = "Unknown"


class PodStatus(OpenModel):
    pod_ip: Annotated[str | None, Field(alias="podIP")] = None
    pod_ips: Annotated[tuple[PodIp, ...], Field(alias="podIPs")] = ()
    phase: str | None = None
    conditions: Annotated[tuple[PodCondition, ...], NULL_IS_EMPTY_LIST] = ()


class PodMeta(ObjectMeta):
    deletion_timestamp: str | None = None


class Pod(_Core, kind="Pod"):
    """A Pod, read for identity (its address and service account), and as an endpoint of backends with a selector. Its
    status is input, unlike other kinds'.
    """

    metadata: Annotated[PodMeta, NULL_IS_EMPTY_MAP]
    spec: PodSpec = PodSpec.model_construct()
    status: PodStatus | None = None


class EndpointConditions(OpenModel):
    """The conditions of an endpoint; None is unknown, and counts as ready (discovery.k8s.io/v1)."""

    ready: Bool | None = None
    serving: Bool | None = None
    terminating: Bool | None = None


class ZoneHint(OpenModel):
    name: str


class EndpointHints(OpenModel):
    for_zones: Annotated[tuple[ZoneHint, ...], NULL_IS_EMPTY_LIST] = ()


class Endpoint(OpenModel):
    addresses: Annotated[tuple[str, ...], Field(min_length=1, max_length=100)]
    conditions: EndpointConditions = EndpointConditions.model_construct()
    hostname: str | None = None
    zone: str | None = None
    hints: EndpointHints | None = None


class EndpointPort(OpenModel):
    name: Annotated[str, BeforeValidator(lambda value: "" if value is None else value)] = ""
    port: Port | None = None
    protocol: str = "TCP"
    app_protocol: str | None = None


class EndpointSlice(_Core, group="discovery.k8s.io", kind="EndpointSlice"):
    """The addresses behind a Service, named by the label `kubernetes.io/service-name`."""

    address_type: Literal["IPv4", "IPv6", "FQDN"]
    endpoints: Annotated[tuple[Endpoint, ...], NULL_IS_EMPTY_LIST] = ()
    ports: Annotated[tuple[EndpointPort, ...], NULL_IS_EMPTY_LIST] = ()

    @property
    def service(self) -> str:
        """The name of the Service (same namespace), "" without the label."""
        return self.metadata.labels.get("kubernetes.io/service-name", "")


class TrustBundleMeta(ObjectMeta):
    """The metadata of a bundle. A signer's bundle has the signer's name as prefix, with a colon for each slash."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.:]*[a-z0-9])?$", max_length=253)]


class ClusterTrustBundleSpec(Model):
    """The certificates, and their signer."""

    signer_name: str = ""
    """The signer of the bundle. Default: none. Not used here."""
    trust_bundle: str
    """Concatenated CA certificates in PEM."""


class ClusterTrustBundle(
    Resource,
    group="certificates.k8s.io",
    versions=("v1beta1", "v1alpha1"),
    kind="ClusterTrustBundle",
    namespaced=False,
):
    """CA certificates for all namespaces. Source: Kubernetes certificates.k8s.io/v1beta1 ClusterTrustBundle."""

    metadata: Annotated[TrustBundleMeta, NULL_IS_EMPTY_MAP]
    spec: ClusterTrustBundleSpec
