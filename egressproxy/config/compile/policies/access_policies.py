"""XAccessPolicies by target, as the filters that enforce them, and their status.

Each policy becomes one filter at each of its targets. All of them have to allow a request, and all EgressPolicies too.
A policy that cannot be enforced closes its targets.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

from egressproxy.config.compile.backends.backend_references import object_key
from egressproxy.config.compile.interface import Status, age_of
from egressproxy.config.compile.references import References
from egressproxy.config.compile.status.conditions import Conditions, ReferenceConditions
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.access_policy import AccessMcp, AccessPolicy, AccessRule, AccessSource
from egressproxy.config.resources.object_references import PolicyTargetReference
from egressproxy.model.caller_identity import namespace_in
from egressproxy.model.published_object import Key

#: Source: PolicyLimitPerTargetExceeded, PolicyReasonInvalidCEL of kube-agentic-networking.
_LIMIT: Final = "LimitPerTargetExceeded"
_INVALID_CEL: Final = "InvalidCEL"
_MATCHES_BASE: Final = "MATCH_BASE_PROTOCOL_METHODS"
_WORKLOAD: Final = re.compile(r"spiffe://([^/]+)/ns/([^/]+)/sa/([^/]+)")

#: Returns why no place exists for a target and section, None if one does.
WhyNotFound = Callable[[Key, str], str | None]


class AccessPolicies:
    """All XAccessPolicies, oldest first."""

    __slots__ = ("_by_target", "_closed", "_references", "_resources", "objects")

    def __init__(self, resources: ResourceSet, references: References) -> None:
        self._resources, self._references = resources, references
        self.objects = sorted(resources.of(AccessPolicy), key=age_of)
        #: Policy -> reason and sentence of what cannot be enforced.
        self._closed: dict[Key, tuple[str, str]] = {}
        self._by_target: dict[tuple[Key, str], list[AccessPolicy]] = defaultdict(list)
        for policy in self.objects:
            for ref in policy.spec.target_refs:
                held = self._by_target[self._target(policy, ref), ref.section_name or ""]
                if policy not in held:
                    held.append(policy)
        for policies in self._by_target.values():
            for policy in [each for each in policies if each.spec.action == "ExternalAuth"][1:]:
                first = next(each for each in policies if each.spec.action == "ExternalAuth")
                self.close(policy, _LIMIT, f"{first} has action ExternalAuth at the same target, where one may have it")

    def at(self, target: Key, section: str) -> tuple[AccessPolicy, ...]:
        """The policies of this target and section."""
        return tuple(self._by_target.get((target, section), ()))

    def close(self, policy: AccessPolicy, reason: str, sentence: str) -> None:
        """Note that the policy cannot be enforced, so that its targets are closed. The first reason stays."""
        self._closed.setdefault(policy.key, (reason, sentence))

    def close_unfit(self, policy: AccessPolicy, why: str) -> None:
        """As `close`, for rules that the filter does not take."""
        has_cel = any(rule.authorization is not None and rule.authorization.cel for rule in policy.spec.rules or ())
        self.close(policy, _INVALID_CEL if has_cel else "Invalid", f"spec.rules: {why}")

    def closed(self, policy: AccessPolicy) -> str:
        """Why the policy cannot be enforced, "" if it can."""
        return self._closed.get(policy.key, ("", ""))[1]

    def statuses(
        self, generations: Mapping[Key, int], not_found: WhyNotFound, knows_clients: Callable[[Key], bool]
    ) -> dict[Key, Status]:
        """The status of every policy, after all places are known."""
        return {each.key: self._status(each, generations[each.key], not_found, knows_clients) for each in self.objects}

    def _status(
        self, policy: AccessPolicy, generation: int, not_found: WhyNotFound, knows_clients: Callable[[Key], bool]
    ) -> Status:
        ancestors = ReferenceConditions("ancestors", generation)
        for ref in policy.spec.target_refs:
            conditions = ancestors.add(ref, namespace=policy.namespace)
            target = self._target(policy, ref)
            why = not_found(target, ref.section_name or "")
            if why is not None:
                conditions.set("Accepted", False, "TargetNotFound", why)
                continue
            self._state(conditions, policy)
            if ref.kind in ("Gateway", "ListenerSet") and _asks_clients(policy) and not knows_clients(target):
                conditions.add_note(
                    "Accepted",
                    f"Its sources fit nobody: no EgressPolicy of {ref.kind} {target[2]}/{target[3]} says who its "
                    "clients are (identity).",
                )
        return ancestors.to_status()

    def _state(self, conditions: Conditions, policy: AccessPolicy) -> None:
        closed = self._closed.get(policy.key)
        if closed is not None:
            conditions.set("Accepted", False, closed[0], f"{closed[1]}; all requests here are refused.")
            return
        conditions.set("Accepted", True, "Accepted", "the policy is in force")
        conditions.set("Programmed", True, "Programmed", "requests here need one of its rules")

    def _target(self, policy: AccessPolicy, ref: PolicyTargetReference) -> Key:
        return object_key(self._resources, ref, policy.namespace)


def filter_config(policy: AccessPolicy, closed: str, trust_domain: str, port: int) -> dict[str, Any]:
    """The config of the filter AccessPolicy for this policy. `trust_domain` is the listener's own; `port` its port, 0
    on a forward proxy; `closed` as of `AccessPolicies.closed`.
    """
    if closed:
        return {"closed": closed}
    made: dict[str, Any] = {"listenerPort": port, "delegates": policy.spec.action == "ExternalAuth"}
    if policy.spec.rules is not None:
        made["rules"] = [_rule(rule, policy.namespace, trust_domain) for rule in policy.spec.rules]
    return made


def _rule(rule: AccessRule, namespace: str, trust_domain: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": rule.name, **_source(rule.source, namespace, trust_domain)}
    written = rule.authorization
    if written is None:
        return made
    made |= {"methods": written.methods, "hosts": written.hosts, "ports": written.ports}
    made["paths"] = [{"value": each.value, "type": each.type.value} for each in written.paths]
    made["headers"] = [{"name": each.name, "value": each.value, "type": each.type.value} for each in written.headers]
    if written.mcp is not None:
        made["mcp"] = _mcp(written.mcp)
    if written.cel is not None:
        made["cel"] = written.cel.expression
    return made


def _source(source: AccessSource, namespace: str, trust_domain: str) -> dict[str, str]:
    """The clients, as CallerIdentity knows them. A SPIFFE id of a workload is also who is known by a token."""
    account = source.service_account
    if account is not None:
        return {"namespace": account.namespace or namespace, "serviceAccount": account.name}
    if source.spiffe is None:
        return {}
    made = {"spiffe": source.spiffe}
    workload = _WORKLOAD.fullmatch(source.spiffe)
    if workload is not None and trust_domain:
        made["namespace"] = namespace_in(workload[1], workload[2], trust_domain)
        made["serviceAccount"] = workload[3]
    return made


def _mcp(mcp: AccessMcp) -> dict[str, Any]:
    made: dict[str, Any] = {"base": mcp.mcp_base_protocol_methods_option == _MATCHES_BASE}
    if mcp.methods is not None:
        made["methods"] = [{"name": each.name, "params": each.params} for each in mcp.methods]
    return made


def _asks_clients(policy: AccessPolicy) -> bool:
    return any(rule.source.type is not None for rule in policy.spec.rules or ())
