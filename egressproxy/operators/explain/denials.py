"""Denials: what was denied lately, grouped by destination and caller, with why and what to do about it."""

from __future__ import annotations

from typing import Any, Final

from egressproxy.errors import Reason
from egressproxy.gateway.exchange.accounting import Accounting
from egressproxy.gateway.exchange.recent_decisions import RecentDecision, decisions, subjects_of
from egressproxy.gateway.snapshot import Snapshot
from egressproxy.model.work import Work
from egressproxy.operators.explain.decision_diff import REFUSED, outcome
from egressproxy.operators.explain.merging import grouped
from egressproxy.telemetry.text_log import remedy_of

#: By reason: why, where the client was told nothing or what quotes its request.
_WHY: Final = {
    Reason.ACCESS_DENIED: "no rule of the access policy allows it",
    Reason.FILTER_REJECTED: "a filter has refused it",
    Reason.CONTENT_DENIED: "a filter has found content that may not pass",
    Reason.EXT_AUTH_DENIED: "the authorization server has refused it",
    Reason.IDENTITY_KILLED: "the client is out of service",
}


def denials(snapshot: Snapshot, accounting: Accounting, since_s: float, namespace: str = "") -> Work[dict[str, Any]]:
    """The groups since this time (seconds since 1970), as cooperative work: `since`, from which on all are there, and
    `denials` as `merging.grouped`, each with the `decision` that was made last.
    """
    whole = tuple(accounting.denials)
    if len(whole) == accounting.denials.maxlen:
        since_s = max(since_s, whole[0][0][0])
    chosen = [each for each in whole if each[0][0] >= since_s and namespace in ("", each[0][7].namespace)]
    latest = decisions((each[0] for each in chosen), subjects_of(snapshot))
    every = []
    for (entry, client, rule, series, told), decision in zip(reversed(chosen), latest, strict=True):
        policy, pattern = series.labels[5:]
        every.append({
            "destination": decision.authority, "method": decision.method, "namespace": decision.namespace,
            "service_account": decision.service_account, "identity": decision.name,
            "client": client.rpartition(":")[0] or client, "gateway": decision.gateway, "listener": decision.listener,
            "reason": decision.reason, "rule": rule, "policy": policy, "entry": pattern, "count": 1,
            "first": decision.time, "last": decision.time, "request_id": decision.request_id,
            **_sentences(entry[8], told), "decision": decision._asdict(),
        })  # fmt: skip
        yield None
    found = grouped(every)
    for each in found:
        each["allowed_now"] = _is_allowed_now(snapshot, RecentDecision.of_admin(each["decision"]))
        yield None
    return {"since": since_s, "denials": found}


def decision_about(snapshot: Snapshot, accounting: Accounting, request_id: str) -> Work[dict[str, Any] | None]:
    """What is remembered of this request: its decision, and of a denial the client, rule, why and remedy."""
    yield None
    denial = next((each for each in accounting.denials if each[0][9] == request_id), None)
    known = [denial[0]] if denial is not None else [each for each in accounting.recent if each[9] == request_id]
    if not known:
        return None
    told = None
    if denial is not None:
        told = {"client": denial[1], "rule": denial[2], **_sentences(denial[0][8], denial[4])}
    return {"decisions": [each._asdict() for each in decisions(known, subjects_of(snapshot))], "denial": told}


def _sentences(reason: Reason, told: tuple[str, str] | None) -> dict[str, str]:
    why, remedy = told or ("", "")
    why = why or _WHY.get(reason) or f"it was refused: {reason.value.replace('_', ' ')}"
    remedy = remedy or remedy_of(reason) or f"see {reason.value} in the documentation"
    return {"why": why, "remedy": remedy}


def _is_allowed_now(snapshot: Snapshot, decision: RecentDecision) -> bool:
    """Whether what names and addresses refused is surely allowed by what is in service."""
    if decision.reason not in REFUSED or decision.authority == "-":
        return False
    now = outcome(snapshot, decision)
    knows = now.knows_addresses or decision.reason != Reason.ADDRESS_DENIED.value
    return now.is_allowed and now.is_sure and knows
