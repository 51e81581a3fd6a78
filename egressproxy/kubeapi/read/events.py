"""Events as a source of the admin API: each one as `v1` and as `events.k8s.io/v1` has it.

What they are about is looked up in the configuration in service when somebody asks, so that their references have the
uid that the API gives the object, as `kubectl describe` wants it.
Source: Kubernetes API reference, Event v1 core, Event v1 events.k8s.io.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from time import time
from typing import Any, Final

from egressproxy.config.served_kinds import OURS
from egressproxy.kubeapi.kinds import KINDS
from egressproxy.kubeapi.read.objects import ObjectSource
from egressproxy.kubeapi.read.representations import uid_of
from egressproxy.model.encoding import rfc3339
from egressproxy.model.published_object import PublishedObject
from egressproxy.telemetry.event_aggregator import InvolvedObject, Notice
from egressproxy.telemetry.events import Events

#: reportingController: that of the GatewayClasses that are ours.
CONTROLLER: Final = "egressproxy.io/gateway-controller"

#: Where the Events of cluster-scoped objects are.
DEFAULT_NAMESPACE: Final = "default"

#: Fields of the core group -> what they are called in events.k8s.io/v1.
_NEWER_NAMES: Final = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_INSTANCE: Final = socket.gethostname()[:128]
_STARTED: Final = int(time())


class PublishedEvents:
    """Events as an ObjectSource. `configuration` has the objects that they are about."""

    def __init__(self, events: Events, configuration: ObjectSource) -> None:
        self._events = events
        self._configuration = configuration

    @property
    def version(self) -> object:
        return self._events.version, self._configuration.version

    def objects(self) -> Iterable[PublishedObject]:
        return _Rendered(self._events.all(), self._configuration.objects())


@dataclass(frozen=True)
class _Rendered:
    """Made when it is iterated for the first time."""

    events: Sequence[tuple[int, Notice]]
    configuration: Iterable[PublishedObject]

    def __iter__(self) -> Iterator[PublishedObject]:
        return iter(self._made)

    @cached_property
    def _made(self) -> list[PublishedObject]:
        subjects = {subject for _, notice in self.events for subject in (notice.regarding, notice.related) if subject}
        found = references(subjects, self.configuration)
        return [made for number, notice in self.events for made in published(number, notice, found)]


def references(
    subjects: Collection[InvolvedObject], configuration: Iterable[PublishedObject]
) -> dict[InvolvedObject, dict[str, str]]:
    """A core v1 ObjectReference for each subject, with the uid that the API gives the object, in service or not."""
    made: dict[InvolvedObject, dict[str, str]] = {}
    if subjects:
        for entry in configuration:
            plain = InvolvedObject(entry.kind, entry.namespace, entry.name)
            for subject in (plain, plain._replace(kind=f"{entry.kind}.{entry.group}")):
                if subject in subjects and (subject not in made or entry.group == OURS):
                    manifest = json.loads(entry.manifest)
                    uid = (manifest.get("metadata") or {}).get("uid") or uid_of(entry.key)
                    made[subject] = _reference(plain, manifest.get("apiVersion", ""), uid)
    for subject in subjects:
        if subject not in made:
            kind, _, group = subject.kind.partition(".")
            group, api_version = _group_of(kind, group)
            plain = subject._replace(kind=kind)
            made[subject] = _reference(plain, api_version, uid_of((group, *plain)))
    return made


def _reference(subject: InvolvedObject, api_version: str, uid: str) -> dict[str, str]:
    namespace = {"namespace": subject.namespace} if subject.namespace else {}
    return {"kind": subject.kind, **namespace, "name": subject.name, "uid": uid, "apiVersion": api_version}


def _group_of(kind: str, group: str) -> tuple[str, str]:
    """The group of a kind, and apiVersion. Where no group is said and several have one of this name it is ours."""
    known = [each for each in KINDS if each.kind == kind and group in ("", each.group)]
    if not known:
        return "", ""
    served = next((each for each in known if each.group == OURS), known[0])
    return served.group, served.api_version(served.versions[0])


def published(
    number: int, notice: Notice, found: Mapping[InvolvedObject, Mapping[str, str]]
) -> Iterator[PublishedObject]:
    """An Event as each of the two groups has it; `found` are the `references` to what it is about."""
    namespace = notice.regarding.namespace or DEFAULT_NAMESPACE
    # As client-go names them: of the object, and told apart by the time.
    name = f"{notice.regarding.name[:230]}.{_STARTED:x}{number:06x}"
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": uid_of(("events.k8s.io", "Event", namespace, name)),
        "creationTimestamp": rfc3339(notice.first_s),
    }
    core: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata,
        "type": notice.severity,
        "reason": notice.reason,
        "action": notice.action,
        "eventTime": _micro_time(notice.first_s),
        "reportingInstance": _INSTANCE,
        "reportingComponent": CONTROLLER,
        "involvedObject": found[notice.regarding],
        "message": notice.message,
        "source": {"component": CONTROLLER},
        "firstTimestamp": rfc3339(notice.first_s),
        "lastTimestamp": rfc3339(notice.last_s),
        "count": notice.count,
    }
    if notice.count > 1:
        core["series"] = {"count": notice.count, "lastObservedTime": _micro_time(notice.last_s)}
    if notice.related is not None:
        core["related"] = found[notice.related]
    newer = {_NEWER_NAMES.get(field, field): value for field, value in core.items()}
    for group, manifest in (("", core), ("events.k8s.io", {**newer, "apiVersion": "events.k8s.io/v1"})):
        yield PublishedObject(group, "Event", namespace, name, json.dumps(manifest).encode())


def _micro_time(seconds: float) -> str:
    """metav1.MicroTime."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
