"""Pruning: core objects, and the metadata of every object, keep only the fields that Kubernetes knows.

Our own kinds need none of this: an unknown field of theirs is an error. The kinds of Kubernetes have many fields that
are not read here; those are kept, since clients compare what they wrote with what they find.
Source: k8s.io/api/core/v1 and discovery/v1, apimachinery meta/v1 ObjectMeta (1.34); API concepts, field validation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

Fields = Mapping[str, Any]
#: What a field may hold: anything (None), an object with these fields, or a list of those.
_ANY: Final = None


def _names(names: str) -> Fields:
    return dict.fromkeys(names.split(), _ANY)


_REFERENCE: Final = _names("apiVersion fieldPath kind name namespace resourceVersion uid")
_METADATA: Final[Fields] = {
    **_names(
        "annotations creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName generation"
        " labels name namespace resourceVersion selfLink uid"
    ),
    "managedFields": _names("apiVersion fieldsType fieldsV1 manager operation subresource time"),
    "ownerReferences": _names("apiVersion blockOwnerDeletion controller kind name uid"),
}
_SERVICE: Final[Fields] = {
    **_names(
        "allocateLoadBalancerNodePorts clusterIP clusterIPs externalIPs externalName externalTrafficPolicy"
        " healthCheckNodePort internalTrafficPolicy ipFamilies ipFamilyPolicy loadBalancerClass loadBalancerIP"
        " loadBalancerSourceRanges publishNotReadyAddresses selector sessionAffinity trafficDistribution type"
    ),
    "ports": _names("appProtocol name nodePort port protocol targetPort"),
    "sessionAffinityConfig": {"clientIP": _names("timeoutSeconds")},
}
_POD: Final = _names(
    "activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy enableServiceLinks"
    " ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride imagePullSecrets"
    " initContainers nodeName nodeSelector os overhead preemptionPolicy priority priorityClassName readinessGates"
    " resourceClaims resources restartPolicy runtimeClassName schedulerName schedulingGates securityContext"
    " serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain"
    " terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes"
)
_POD_STATUS: Final = _names(
    "conditions containerStatuses ephemeralContainerStatuses extendedResourceClaimStatus hostIP hostIPs"
    " initContainerStatuses message nominatedNodeName observedGeneration phase podIP podIPs qosClass reason resize"
    " resourceClaimStatuses startTime"
)
_ENDPOINT: Final[Fields] = {
    **_names("addresses deprecatedTopology hostname nodeName zone"),
    "conditions": _names("ready serving terminating"),
    "hints": {"forNodes": _names("name"), "forZones": _names("name")},
    "targetRef": _REFERENCE,
}
_KINDS: Final[Mapping[tuple[str, str], Fields]] = {
    ("", "ConfigMap"): _names("binaryData data immutable"),
    ("", "Namespace"): {"spec": _names("finalizers")},
    ("", "Pod"): {"spec": _POD, "status": _POD_STATUS},
    ("", "Secret"): _names("data immutable stringData type"),
    ("", "Service"): {"spec": _SERVICE},
    ("", "ServiceAccount"): {
        "automountServiceAccountToken": _ANY,
        "imagePullSecrets": _names("name"),
        "secrets": _REFERENCE,
    },
    ("discovery.k8s.io", "EndpointSlice"): {
        "addressType": _ANY,
        "endpoints": _ENDPOINT,
        "ports": _names("appProtocol name port protocol"),
    },
}


def pruned(group: str, kind: str, manifest: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The manifest with the fields of its kind, and the paths of those that are gone; what was given is left alone."""
    gone: list[str] = []
    fields = _KINDS.get((group, kind))
    if fields is not None:
        fields = {**_names("apiVersion kind status"), **fields, "metadata": _METADATA}
        return _of(manifest, fields, "", gone), gone
    made = dict(manifest)
    if isinstance(made.get("metadata"), Mapping):
        made["metadata"] = _of(made["metadata"], _METADATA, "metadata.", gone)
    return made, gone


def _of(value: Any, fields: Fields | None, path: str, gone: list[str]) -> Any:
    """`path` ends with a dot, but for the object itself. Something that is no object is for the schema to refuse."""
    if fields is None:
        return value
    if isinstance(value, list):
        where = path.removesuffix(".")
        return [_of(each, fields, f"{where}[{index}].", gone) for index, each in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    return dict(_kept(value, fields, path, gone))


def _kept(value: Mapping[str, Any], fields: Fields, path: str, gone: list[str]) -> Iterator[tuple[str, Any]]:
    for name, each in value.items():
        if name in fields:
            yield name, _of(each, fields[name], f"{path}{name}.", gone)
        else:
            gone.append(f"{path}{name}")
