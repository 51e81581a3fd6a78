"""StatusWriter: writes each object's `status` if the API server's differs.

It writes the subresource `status` by server-side apply, with the last seen resource version, so that other controllers'
data is never lost. Lists such as `parents` are owned by their last writer, and have the entries of all controllers. Of
a list that an API server merges (`controllers`), only our own entry is applied.
Source: Gateway API RouteStatus, PolicyStatus, BackendStatus; Kubernetes server-side apply.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from egressproxy.config.served_kinds import CONFIGURED, GATEWAY, OURS
from egressproxy.kubernetes.access import missing_right
from egressproxy.kubernetes.api_client import UNREACHABLE, ApiClient, ApiError, api_root
from egressproxy.kubernetes.object_store import ObjectStore, StoredObject
from egressproxy.kubernetes.shared_trials import applied
from egressproxy.model.published_object import Key
from egressproxy.processes.loader.published import MAX_MESSAGE

log = logging.getLogger(__name__)

#: `controllerName` of our entries.
CONTROLLER: Final = "egressproxy.io/gateway-controller"
#: The most parallel writes, and the time limit of one in seconds.
AT_ONCE: Final = 8
WRITE_S: Final = 5.0
#: Lists with entries of several controllers -> the field with the controller; lists that an API server merges; and the
#: key fields of any list.
_SHARED: Final = {"parents": "controllerName", "ancestors": "controllerName", "controllers": "name"}
_MERGED: Final = frozenset({"controllers"})
_IDENTITY: Final = ("parentRef", "ancestorRef", "name", "type", "date")
_OF_SERVER: Final = 500
#: Seconds until a retry without the subresource or the right to it, which is reported once.
AGAIN_S: Final = 300.0
_NEVER: Final = frozenset({403, 404, 405})

#: The condition of a Gateway while parts of the cluster are unreadable.
_INCOMPLETE: Final = "egressproxy.io/SourceIncomplete"

_KINDS: Final = {(kind.group, kind.kind): kind for kind in CONFIGURED}
#: An API server's error for a field that its CRD lacks.
_UNDECLARED: Final = "field not declared in schema"
#: The names of the list `ancestors` and its `ancestorRef` in XBackend's CRD: Gateway API's, and two earlier ones.
_NAMES: Final = (("ancestors", "ancestorRef"), ("ancestors", "parentRef"), ("parents", "parentRef"))
_WITH_OLDER_NAMES: Final = frozenset({("gateway.networking.x-k8s.io", "XBackend"), (GATEWAY, "Backend")})


class StatusWriter:
    """`left_s` returns the seconds for which we may write the status of an object, as `Lease.left_s`; for None, of any
    object. Belongs to the event loop.
    """

    def __init__(
        self, client: ApiClient, store: ObjectStore, left_s: Callable[[Key | None], float],
        complete: Callable[[Key, bytes], bytes] = lambda _key, status: status,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`complete` adds local facts to the status of an object (JSON)."""
        self._complete = complete
        self._clock = clock
        self._client = client
        self._store = store
        self._left_s = left_s
        self._ours: Mapping[Key, bytes] = {}
        self._due = asyncio.Event()
        self._written: dict[Key, str] = {}  # the version that a write replaced
        #: Group, kind, namespace -> reason, end of the pause.
        self._refused: dict[tuple[str, ...], tuple[str, float]] = {}
        self._settled: dict[Key, tuple[bytes, bytes | None]] = {}  # the server's and our status: no retry
        self._names: dict[tuple[str, str], int] = {}  # group, kind -> index in `_NAMES`
        self._tried: dict[tuple[str, str], set[int]] = {}  # indices tried since the last success

    def show(self, statuses: Mapping[Key, bytes]) -> None:
        """Write these statuses (JSON, by key), and remove our entries from all other objects."""
        self._ours = statuses
        self._due.set()

    def look_again(self) -> None:
        """Compare again: statuses in the API server may have changed."""
        self._due.set()

    @property
    def problems(self) -> list[str]:
        """The errors of writes, a sentence for each kind."""
        return [why for why, _ in self._refused.values()]

    async def run(self) -> None:
        """Run until it is cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            if not self._left_s(None):
                await asyncio.sleep(1.0)
                self._due.set()
                continue
            is_left = await self.write()
            await asyncio.sleep(1.0 if is_left else 0.1)
            if is_left:
                self._due.set()

    async def write(self) -> bool:
        """Write the differing statuses; returns whether some are left for later."""
        pending = list(self._differences())
        running = asyncio.Semaphore(AT_ONCE)
        done = await asyncio.gather(*(self._write(running, *each) for each in pending))
        return not all(done)

    def _differences(self) -> Iterator[tuple[Key, StoredObject, dict[str, Any], bytes | None]]:
        there = {key for key, _ in self._store.objects()}
        self._settled = {key: each for key, each in self._settled.items() if key in there}
        self._written = {key: each for key, each in self._written.items() if key in there}
        for key, held in self._store.objects():
            ours = self._ours.get(key)
            if ours is not None:
                ours = self._complete(key, ours)
            if ours is None and CONTROLLER.encode() not in held.status:
                continue
            if self._is_forbidden(key) or self._settled.get(key) == (held.status, ours):
                continue
            if self._written.get(key) == held.resource_version:  # the watch has not returned our write
                continue
            if not self._left_s(key):
                continue
            status = merged(json.loads(held.status or b"{}"), self._named(key, json.loads(ours or b"{}")))
            if status is None:
                self._settled[key] = (held.status, ours)
            else:
                yield key, held, status, ours

    def _named(self, key: Key, status: dict[str, Any]) -> dict[str, Any]:
        """The status with the names that the server's definition of the kind has."""
        section, reference = _NAMES[self._names.get(key[:2], 0)]
        if key[:2] not in _WITH_OLDER_NAMES or "ancestors" not in status:
            return status
        return {
            section: [
                {reference if name == "ancestorRef" else name: value for name, value in each.items()}
                for each in status["ancestors"]
            ]
        }

    def _has_other_names(self, kind: tuple[str, str], error: ApiError) -> bool:
        """Whether the names of another definition of the kind are taken from now on."""
        text = str(error)
        if _UNDECLARED not in text or kind not in _WITH_OLDER_NAMES:
            return False
        other = 1 if ".status.ancestors[" in text else 2 if ".status.ancestors" in text else 0
        if other == self._names.get(kind, 0):  # another write has said so
            return True
        tried = self._tried.setdefault(kind, set())
        if other in tried:
            return False
        tried.add(other)
        self._names[kind] = other
        return True

    async def _write(
        self, running: asyncio.Semaphore, key: Key, held: StoredObject, status: dict[str, Any], ours: bytes | None
    ) -> bool:
        async with running:
            left_s = self._left_s(key)
            if not left_s or self._is_forbidden(key):
                return not left_s  # another gateway writes it
            kind = _KINDS[key[:2]]
            manifest = json.loads(held.manifest)
            api_version = manifest["apiVersion"]
            scope = f"/namespaces/{key[2]}" if kind.is_namespaced else ""
            metadata = {"name": key[3], "resourceVersion": held.resource_version}
            if kind.is_namespaced:
                metadata["namespace"] = key[2]
            path = f"{api_root(api_version)}{scope}/{kind.plural}/{key[3]}/status"
            body = {"apiVersion": api_version, "kind": kind.kind, "metadata": metadata, "status": status}
            try:
                async with asyncio.timeout(min(left_s, WRITE_S)):
                    made = await applied(self._client, path, body)
                self._refused.pop(key[:3], None)
                self._tried.pop(key[:2], None)
                self._written[key] = held.resource_version
                self._settled[key] = (json.dumps(made.get("status") or {}).encode(), ours)
                return True
            except ApiError as error:
                return self._failed(key, held, ours, error)
            except UNREACHABLE:
                return False  # the readers report it

    def _is_forbidden(self, key: Key) -> bool:
        """Whether a write of this kind was forbidden in the object's namespace, and it is too early to try again."""
        _, until = self._refused.get(key[:3], ("", 0.0))
        return until > self._clock()

    def _failed(self, key: Key, held: StoredObject, ours: bytes | None, error: ApiError) -> bool:
        """Whether a retry is useless before the object or its status changes."""
        if self._has_other_names(key[:2], error):
            return False
        if error.is_conflict or (error.status >= _OF_SERVER and _UNDECLARED not in str(error)):
            return False
        kind = _KINDS[key[:2]]
        resource = kind.resource
        if error.status in _NEVER and self._store.find(key) is held:  # and not deleted meanwhile
            scope = f" in namespace {key[2]}" if key[2] else ""
            why = f"status of {resource}{scope} cannot be written: {error}"
            if error.is_forbidden:
                why = missing_right("patch", kind.group, f"{kind.plural}/status", key[2])
            if key[:3] not in self._refused:
                log.warning("%s", why)
            self._refused[key[:3]] = why, self._clock() + AGAIN_S
        else:
            self._settled[key] = (held.status, ours)
            log.warning("status of %s %s cannot be written: %s", resource, "/".join(filter(None, key[2:])), error)
        return True


def merged(now: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any] | None:
    """The status to apply so that `now`, the server's status, includes `ours`; None if it does.

    Entries and conditions of other controllers stay. An unchanged condition keeps its time.
    """
    made: dict[str, Any] = {}
    is_other = False
    for name, value in ours.items():
        if name not in _SHARED:
            made[name] = _with_times(value, now.get(name))
            is_other |= not _includes(now.get(name), made[name])
    for section, owner in _SHARED.items():
        held = now.get(section) or []
        mine = [each for each in held if each.get(owner) == CONTROLLER]
        if section in ours or mine:
            fresh = [_with_times(each, _same(each, mine)) for each in ours.get(section, ())]
            others = [] if section in _MERGED else [each for each in held if each.get(owner) != CONTROLLER]
            made[section] = others + fresh
            is_other |= len(fresh) != len(mine) or not all(any(_includes(was, each) for was in mine) for each in fresh)
    return made if is_other else None


def _same(entry: Mapping[str, Any], held: Iterable[Any]) -> Mapping[str, Any] | None:
    """The entry for the same parent, listener or condition, or None."""
    found = (each for each in held if isinstance(each, dict))
    return next((each for each in found if all(each.get(name) == entry.get(name) for name in _IDENTITY)), None)


def _with_times(value: Any, held: Any) -> Any:
    """The value with the times of equal conditions in `held`."""
    if isinstance(value, list):
        known = held if isinstance(held, list) else []
        return [_with_times(each, _same(each, known)) if isinstance(each, dict) else each for each in value]
    if not isinstance(value, dict):
        return value
    before = held if isinstance(held, dict) else {}
    made = {name: _with_times(part, before.get(name)) for name, part in value.items()}
    if "lastTransitionTime" in made and before.get("status") == made["status"]:
        made["lastTransitionTime"] = before.get("lastTransitionTime", made["lastTransitionTime"])
    return made


def _includes(now: Any, expected: Any) -> bool:
    """Whether the server's status includes the wanted one; it may have more fields and foreign conditions."""
    if isinstance(expected, dict):
        return isinstance(now, dict) and all(_includes(now.get(name), part) for name, part in expected.items())
    if isinstance(expected, list) and all(isinstance(each, dict) for each in expected):
        held = [each for each in now or () if not _is_foreign(each)] if isinstance(now, list) else []
        return len(held) == len(expected) and all(_includes(_same(each, held), each) for each in expected)
    return bool(now == expected)


def _is_foreign(entry: Any) -> bool:
    """Whether this is a condition with another vendor's domain."""
    domain, slash, _ = str(entry.get("type", "")).partition("/") if isinstance(entry, dict) else ("", "", "")
    return bool(slash) and domain != OURS


def gateway_status(status: bytes, addresses: Sequence[dict[str, str]], problems: Sequence[str], since: str) -> bytes:
    """The status of a Gateway (JSON) with these addresses, and with a condition for the problems if there are any.

    `addresses` are those of `service_addresses`: those that the Gateway asks for by their routability are shown, or
    else the outermost. `since` is the time of the condition (RFC 3339).
    """
    if not addresses and not problems and b'"routability"' not in status:
        return status
    made = json.loads(status)
    asked = {each["routability"] for each in made["addresses"] if "routability" in each}
    if asked:
        _show_routable(made, asked, addresses)
    elif addresses:
        outside = [each for each in addresses if each["routability"] == "External"] or addresses
        made["addresses"] = [{"type": each["type"], "value": each["value"]} for each in outside]
    if problems:
        generation = next((each["observedGeneration"] for each in made["conditions"]), 0)
        made["conditions"].append({
            "type": _INCOMPLETE, "status": "True", "reason": "CannotBeRead", "observedGeneration": generation,
            "message": "; ".join(problems)[:MAX_MESSAGE], "lastTransitionTime": since,
        })  # fmt: skip
    return json.dumps(made).encode()


def _show_routable(made: dict[str, Any], asked: set[str], addresses: Sequence[dict[str, str]]) -> None:
    """Show the addresses of these scopes (GEP-5093). Without a Service the bound addresses are External, and no address
    is called Cluster.
    """
    bound = [each for each in made["addresses"] if each.get("routability") == "External"]
    shown = [each for each in addresses if each["routability"] in asked] if addresses else bound
    made["addresses"] = shown
    missing = sorted(asked - {each["routability"] for each in shown})
    for condition in made["conditions"]:
        if missing and condition["type"] == "AddressesAssigned":
            reason = "PartiallyAssigned" if shown else "NotAssigned"
            message = f"the Service in front has no address of routability {', '.join(missing)}"
            condition.update(status="False", reason=reason, message=message)


def service_addresses(service: StoredObject) -> list[dict[str, str]]:
    """The addresses of a Service for `status.addresses`: its load balancer's (External) and its own (Cluster)."""
    ingress = (json.loads(service.status or b"{}").get("loadBalancer") or {}).get("ingress") or []
    spec = json.loads(service.manifest).get("spec") or {}
    ips = [each["ip"] for each in ingress if each.get("ip")] or spec.get("externalIPs") or []
    names = [each["hostname"] for each in ingress if each.get("hostname")]
    own = [each for each in spec.get("clusterIPs") or [spec.get("clusterIP")] if each and each != "None"]
    return [
        *({"type": "IPAddress", "value": each, "routability": "External"} for each in ips),
        *({"type": "Hostname", "value": each, "routability": "External"} for each in names),
        *({"type": "IPAddress", "value": each, "routability": "Cluster"} for each in own),
    ]
