"""SubjectNotes: what status says that is so only for the clients of policies with `subjects`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from egressproxy.config.compile.status.conditions import Conditions
from egressproxy.config.resources.policy import EgressPolicy, Subject
from egressproxy.model.published_object import Key

#: Sets of policies, and subjects of one policy, that a sentence names.
MAX_SHOWN: Final = 3


class SubjectNotes:
    """Collects sentences, each with the clients that it is about, and writes each once."""

    __slots__ = ("_notes", "_said")

    def __init__(self) -> None:
        self._notes: dict[tuple[Conditions, str, str, str], dict[frozenset[Key], None]] = {}
        self._said: set[tuple[Conditions, str]] = set()

    def of_everybody(self, conditions: Conditions, sentences: Iterable[str]) -> None:
        """These are said already, of everybody."""
        self._said.update((conditions, sentence) for sentence in sentences)

    def add(self, conditions: Conditions, kind: str, reason: str, sentence: str, holding: frozenset[Key]) -> None:
        """A sentence that is so for clients for whom these policies hold."""
        if (conditions, sentence) not in self._said:
            self._notes.setdefault((conditions, kind, reason, sentence), {})[holding] = None

    def write(self, policies: Iterable[EgressPolicy]) -> None:
        """Have the conditions say it. Call it when all variants are compiled. `policies` has all of them."""
        known = {policy.key: policy for policy in policies} if self._notes else {}
        for (conditions, kind, reason, sentence), sets in self._notes.items():
            shown = [_clients_text([known[key] for key in sorted(each)]) for each in list(sets)[:MAX_SHOWN]]
            more = f"; and for those of {len(sets) - MAX_SHOWN} other policies" if len(sets) > MAX_SHOWN else ""
            conditions.report(kind, reason, f"For {'; for '.join(shown)}{more}: {sentence}")


def _clients_text(policies: Sequence[EgressPolicy]) -> str:
    """Whom these policies together are for: "the subjects of EgressPolicy ns/name (namespace team)"."""
    return f"the subjects of {' and of '.join(map(_policy_text, policies))}"


def _policy_text(policy: EgressPolicy) -> str:
    subjects = policy.spec.subjects
    more = f" and {len(subjects) - MAX_SHOWN} more" if len(subjects) > MAX_SHOWN else ""
    return f"{policy} ({'; '.join(map(_subject_text, subjects[:MAX_SHOWN]))}{more})"


def _subject_text(subject: Subject) -> str:
    parts = (
        ("namespace", subject.namespace),
        ("trust domain", subject.trust_domain),
        ("service account", subject.service_account),
        ("group", subject.group),
        ("claim", f"{subject.claim.name}={subject.claim.value}" if subject.claim is not None else None),
    )
    return ", ".join(f"{name} {value}" for name, value in parts if value)
