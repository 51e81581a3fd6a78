"""What the status of a Gateway says of the cluster: the addresses in front of it, and what cannot be read.

Source: Gateway API, GatewayStatus; Kubernetes, Service and its `status.loadBalancer`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from egressproxy.kubernetes.object_store import StoredObject
from egressproxy.processes.loader.published import MAX_MESSAGE

#: The condition while something of the cluster cannot be read.
_INCOMPLETE: Final = "egressproxy.io/SourceIncomplete"


def completed(status: bytes, addresses: Sequence[dict[str, str]], problems: Sequence[str], since: str) -> bytes:
    """The status of a Gateway (JSON) with these addresses, and with a condition for the problems if there are any.

    `since` is the time of the condition (RFC 3339).
    """
    if not addresses and not problems:
        return status
    made = json.loads(status)
    if addresses:
        made["addresses"] = addresses
    if problems:
        generation = next((each["observedGeneration"] for each in made["conditions"]), 0)
        made["conditions"].append({
            "type": _INCOMPLETE, "status": "True", "reason": "CannotBeRead", "observedGeneration": generation,
            "message": "; ".join(problems)[:MAX_MESSAGE], "lastTransitionTime": since,
        })  # fmt: skip
    return json.dumps(made).encode()


def service_addresses(service: StoredObject) -> list[dict[str, str]]:
    """The addresses of a Service as `status.addresses` has them: of its load balancer, else its own."""
    ingress = (json.loads(service.status or b"{}").get("loadBalancer") or {}).get("ingress") or []
    spec = json.loads(service.manifest).get("spec") or {}
    ips = [each["ip"] for each in ingress if each.get("ip")] or spec.get("externalIPs") or []
    names = [each["hostname"] for each in ingress if each.get("hostname")]
    if not ips and not names:
        ips = [each for each in spec.get("clusterIPs") or [spec.get("clusterIP")] if each and each != "None"]
    return [
        *({"type": "IPAddress", "value": each} for each in ips),
        *({"type": "Hostname", "value": each} for each in names),
    ]
