"""Denials: what was denied lately, grouped by destination and caller, with why and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from egressproxy.errors import Reason
from egressproxy.gateway.exchange.recent_decisions import Denials, RecentDecision, Remembered, decisions, subjects_of
from egressproxy.gateway.snapshot import Snapshot
from egressproxy.model.work import Work
from egressproxy.operators.explain.decision_diff import REFUSED, outcome
from egressproxy.telemetry.text_log import remedy_of

#: The most groups of one answer.
MAX_GROUPS: Final = 200
#: By reason: why, where the client was told nothing or what quotes its request.
_WHY: Final = {
    Reason.ACCESS_DENIED: "no rule of the access policy allows it",
    Reason.FILTER_REJECTED: "a filter has refused it",
    Reason.CONTENT_DENIED: "a filter has found content that may not pass",
    Reason.EXT_AUTH_DENIED: "the authorization server has refused it",
    Reason.IDENTITY_KILLED: "the client is out of service",
}


def denials(snapshot: Snapshot, kept: Denials, since_s: float, namespace: str = "") -> Work[dict[str, Any]]:
    """The groups since this time (seconds since 1970), as cooperative work: `since`, from which on all are there, and
    `denials`, the most frequent first, each with the `decision` that was made last.
    """
    whole = tuple(kept)
    if len(whole) == kept.maxlen:
        since_s = max(since_s, whole[0][0][0])
    chosen = [each for each in whole if each[0][0] >= since_s and namespace in ("", each[0][7].namespace)]
    latest = decisions((each[0] for each in chosen), subjects_of(snapshot))
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    for (entry, client, rule, series, told), decision in zip(reversed(chosen), latest, strict=True):
        who = decision.name if decision.name != "-" else client.rpartition(":")[0]
        key = (
            decision.method, decision.authority, decision.gateway, decision.listener, decision.namespace,
            decision.service_account, who, decision.reason, rule,
        )  # fmt: skip
        known = groups.get(key)
        if known is None:
            why, remedy = _sentences(entry[8], told)
            policy, pattern = series.labels[5:]
            groups[key] = {
                "destination": decision.authority, "method": decision.method, "namespace": decision.namespace,
                "service_account": decision.service_account, "identity": decision.name,
                "client": client.rpartition(":")[0] or client, "gateway": decision.gateway,
                "listener": decision.listener, "reason": decision.reason, "rule": rule, "policy": policy,
                "entry": pattern, "count": 1, "first": decision.time, "last": decision.time,
                "request_id": decision.request_id, "why": why, "remedy": remedy, "decision": decision._asdict(),
            }  # fmt: skip
        else:
            known["count"] += 1
            known["first"] = min(known["first"], decision.time)
            known["last"] = max(known["last"], decision.time)
        yield None
    found = most_frequent(groups.values())
    for each in found:
        each["allowed_now"] = _is_allowed_now(snapshot, RecentDecision.of_admin(each["decision"]))
        yield None
    return {"since": since_s, "denials": found}


def decision_about(
    request_id: str, snapshot: Snapshot | None, recent: Remembered, denied: Denials
) -> dict[str, Any] | None:
    """What is remembered of this request: its decision, and of a denial the client, rule, why and remedy."""
    denial = next((each for each in denied if each[0][9] == request_id), None)
    entry = denial[0] if denial is not None else next((each for each in recent if each[9] == request_id), None)
    if entry is None:
        return None
    told = None
    if denial is not None:
        why, remedy = _sentences(entry[8], denial[4])
        told = {"client": denial[1], "rule": denial[2], "why": why, "remedy": remedy}
    return {"decisions": [next(decisions([entry], subjects_of(snapshot)))._asdict()], "denial": told}


def most_frequent(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many groups as one answer has, the most frequent and then the latest first."""
    return sorted(groups, key=lambda each: (-each["count"], -each["last"]))[:MAX_GROUPS]


def _sentences(reason: Reason, told: tuple[str, str] | None) -> tuple[str, str]:
    why, remedy = told or ("", "")
    why = why or _WHY.get(reason) or f"it was refused: {reason.value.replace('_', ' ')}"
    remedy = remedy or remedy_of(reason) or f"see {reason.value} in the documentation"
    return why, remedy


def _is_allowed_now(snapshot: Snapshot, decision: RecentDecision) -> bool:
    """Whether what names and addresses refused is surely allowed by what is in service."""
    if decision.reason not in REFUSED or decision.authority == "-":
        return False
    now = outcome(snapshot, decision)
    knows = now.knows_addresses or decision.reason != Reason.ADDRESS_DENIED.value
    return now.is_allowed and now.is_sure and knows
