"""Which kinds are understood: from apiVersion and kind to the class that reads it; and which are left out.

Kinds of Kubernetes, Cilium and Gateway API stand beside ours in many manifests, and say nothing to us. A file that has
one is read, and the object is left out, which is noted (where it asks something of a gateway, as not served): the
manifests of an application should work as they are. So is a kind that nobody here knows: a vendor's object takes none
of its neighbours with it. What looks like a misspelt kind or group of those that are known stays an error, as does
everything in our own group.
"""

from egressproxy.config.resources.access_policy import AGENTIC_GROUP, AccessPolicy
from egressproxy.config.resources.backend import (
    Backend,
    BackendTlsPolicy,
    GatewayBackend,
    GatewayXBackendDestination,
    PrototypeBackend,
    WorkingGroupBackend,
    XBackendDestination,
)
from egressproxy.config.resources.core import (
    ClusterTrustBundle,
    ConfigMap,
    EndpointSlice,
    Namespace,
    Pod,
    Secret,
    Service,
    ServiceAccount,
)
from egressproxy.config.resources.extension import FilterTypeDefinition, PayloadProcessingPipeline, PublishedPipeline
from egressproxy.config.resources.gateway import Gateway, GatewayClass, ListenerSet, ReferenceGrant
from egressproxy.config.resources.meta import OUR_GROUP, Resource
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.config.resources.routes import GrpcRoute, HttpRoute, TcpRoute, TlsRoute
from egressproxy.config.resources.telemetry import XTelemetryPolicy
from egressproxy.config.resources.x_backend import XBackend
from egressproxy.config.served_kinds import is_experiment
from egressproxy.model.near_names import did_you_mean

KINDS: tuple[type[Resource], ...] = (
    GatewayClass, Gateway, ListenerSet, HttpRoute, GrpcRoute, TlsRoute, TcpRoute, BackendTlsPolicy, ReferenceGrant,
    XTelemetryPolicy, XBackend, WorkingGroupBackend, GatewayXBackendDestination, PublishedPipeline, PrototypeBackend,
    XBackendDestination, Backend, EgressPolicy, AccessPolicy, PayloadProcessingPipeline, FilterTypeDefinition,
    Namespace, Secret, ConfigMap, Service, ServiceAccount, Pod, EndpointSlice, ClusterTrustBundle,
)  # fmt: skip

#: (apiVersion, kind) -> class.
BY_API_VERSION: dict[tuple[str, str], type[Resource]] = {
    (f"{kind.GROUP}/{version}" if kind.GROUP else version, kind.KIND): kind
    for kind in KINDS
    for version in kind.VERSIONS
}


def kind_class(api_version: str, kind: str, spec: object = None) -> type[Resource] | None:
    """The class that reads objects of this kind, or None; by `spec`, too, since one Backend has two shapes."""
    found = BY_API_VERSION.get((api_version, kind))
    if found is WorkingGroupBackend and isinstance(spec, dict) and "destination" not in spec and "type" in spec:
        return GatewayBackend
    return found


#: Group -> kinds, of whatever version.
_KUBERNETES: dict[str, frozenset[str]] = {
    "": frozenset({
        "Endpoints", "Event", "LimitRange", "Node", "PersistentVolume", "PersistentVolumeClaim", "PodTemplate",
        "ReplicationController", "ResourceQuota",
    }),
    "admissionregistration.k8s.io": frozenset({
        "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "MutatingWebhookConfiguration",
        "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration",
    }),
    "apiextensions.k8s.io": frozenset({"CustomResourceDefinition"}),
    "apiregistration.k8s.io": frozenset({"APIService"}),
    "apps": frozenset({"ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"}),
    "autoscaling": frozenset({"HorizontalPodAutoscaler"}),
    "batch": frozenset({"CronJob", "Job"}),
    "cilium.io": frozenset({"CiliumClusterwideNetworkPolicy", "CiliumNetworkPolicy"}),
    "coordination.k8s.io": frozenset({"Lease"}),
    "events.k8s.io": frozenset({"Event"}),
    "networking.k8s.io": frozenset({"IPAddress", "Ingress", "IngressClass", "NetworkPolicy", "ServiceCIDR"}),
    "node.k8s.io": frozenset({"RuntimeClass"}),
    "policy": frozenset({"PodDisruptionBudget"}),
    "rbac.authorization.k8s.io": frozenset({"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}),
    "scheduling.k8s.io": frozenset({"PriorityClass"}),
    "storage.k8s.io": frozenset({"CSIDriver", "CSINode", "StorageClass", "VolumeAttachment"}),
}  # fmt: skip
_GATEWAY_API: dict[str, frozenset[str]] = {
    "gateway.networking.k8s.io": frozenset({"BackendLBPolicy", "PayloadProcessor", "UDPRoute"}),
    "gateway.networking.x-k8s.io": frozenset({"XBackendTrafficPolicy", "XListenerSet", "XMesh"}),
    "multicluster.x-k8s.io": frozenset({"ServiceExport", "ServiceImport"}),
    AGENTIC_GROUP: frozenset({"XBackend"}),
}
#: What to use in place of those that would have had a say here.
_INSTEAD = {
    "Endpoints": "write EndpointSlices",
    **dict.fromkeys(
        ("CiliumClusterwideNetworkPolicy", "CiliumNetworkPolicy", "NetworkPolicy"),
        "nothing here enforces it: say what may leave in an EgressPolicy",
    ),
    "XListenerSet": "use ListenerSet of gateway.networking.k8s.io/v1",
    "PayloadProcessor": "use PayloadProcessingPipeline",
    "BackendLBPolicy": "use sessionPersistence of a route's rule",
}


def why_left_out(api_version: str, kind: str) -> str:
    """Why an object of this kind is left out, or what to use instead; "" for any other kind."""
    group = api_version.rpartition("/")[0]
    if kind not in _KUBERNETES.get(group, ()) and kind not in _GATEWAY_API.get(group, ()):
        return ""
    return _INSTEAD.get(kind, "objects of this kind do nothing here" if group in _KUBERNETES else "not supported")


#: Our own unique names.
_OURS = {kind.KIND for kind in KINDS if kind.GROUP == OUR_GROUP} - {"Backend"}
#: How much like a known name another is that counts as misspelt, of groups and of kinds: egressproxy.com is, and
#: networking.gke.io is not.
LIKE_GROUP, LIKE_KIND = 0.89, 0.8


def is_foreign(api_version: str, kind: str) -> bool:
    """Whether this is a vendor's kind, or one of Kubernetes' experiments, and no misspelt one of those that are read or
    left out.
    """
    group = api_version.rpartition("/")[0]
    if group in ("", OUR_GROUP):
        return False
    if is_experiment(group):
        return True  # its kinds come and go, with names much like each other
    groups = {known.GROUP for known in KINDS} | _KUBERNETES.keys() | _GATEWAY_API.keys()
    names = _OURS
    if group in groups:
        names = {known.KIND for known in KINDS if group == known.GROUP}
        names |= _KUBERNETES.get(group, frozenset()) | _GATEWAY_API.get(group, frozenset())
    elif did_you_mean(group, groups, "", LIKE_GROUP):
        return False
    return not did_you_mean(kind, names, "", LIKE_KIND)


def is_for_gateways(api_version: str) -> bool:
    """Whether kinds of this group ask something of a gateway, so that an object left out is missed."""
    return api_version.rpartition("/")[0] in _GATEWAY_API
