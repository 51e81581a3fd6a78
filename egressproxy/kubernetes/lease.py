"""Leases: which of several gateways writes the status of an object. Source: Kubernetes coordination.k8s.io/v1 Lease, as
leaderelection of client-go uses it.

Others see only whether the object has changed, by their own clocks, so that clocks need not agree. The holder stops to
write some seconds before others may take over: `left_s` says for how long a write may still go on (fencing).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from egressproxy.config.served_kinds import lease_names
from egressproxy.kubernetes.access import missing_right
from egressproxy.kubernetes.api_client import UNREACHABLE, ApiClient, ApiError
from egressproxy.model.published_object import Key
from egressproxy.run_options import ClusterOptions

log = logging.getLogger(__name__)

#: How long a Lease is held after it was renewed, and how often the holder renews it, in seconds.
DURATION_S: Final = 15.0
RENEW_S: Final = 4.0
#: How long before its end the holder stops to write.
MARGIN_S: Final = 5.0
_GROUP: Final = "/apis/coordination.k8s.io/v1/namespaces"
_ALL: Final = "/apis/coordination.k8s.io/v1/leases"
_MAX_MANAGER: Final = 128  # characters


class LeasesElsewhere:
    """The Leases of one name in all namespaces, and whether somebody holds them. An answer is good for DURATION_S."""

    def __init__(self, client: ApiClient, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._name = name
        self._clock = clock
        self._looked_at: float | None = None
        self._seen: dict[str, tuple[str, float]] = {}  # by namespace: the version, and since when
        self.problem = ""

    def may_be_held(self, namespace: str) -> bool:
        """Whether somebody holds it there, or that is not known."""
        now = self._clock()
        if self._looked_at is None or now - self._looked_at > DURATION_S:
            return True
        return namespace in self._seen and now - self._seen[namespace][1] <= DURATION_S

    async def look(self) -> bool:
        """Ask once; returns whether the answer has changed. Without the right to list, nobody holds one."""
        self.problem = ""
        try:
            found = await self._client.get(_ALL, {"fieldSelector": f"metadata.name={self._name}"})
        except ApiError as error:
            if not error.is_forbidden:
                return False
            self.problem = f"leases {self._name} of other namespaces cannot be listed: {error}"
            found = {"items": []}
        except UNREACHABLE:
            return False
        now, before = self._clock(), self._seen
        held = {
            each["metadata"]["namespace"]: str(each["metadata"].get("resourceVersion"))
            for each in found.get("items") or ()
            if (each.get("spec") or {}).get("holderIdentity")
        }
        self._seen = {
            namespace: before[namespace] if before.get(namespace, ("",))[0] == version else (version, now)
            for namespace, version in held.items()
        }
        is_first, self._looked_at = self._looked_at is None, now
        return is_first or before.keys() != self._seen.keys()


class Lease:
    """The Lease `name` in `namespace`, wanted by `holder`. `run` keeps it; `left_s` says whether we have it."""

    def __init__(
        self, client: ApiClient, namespace: str, name: str, holder: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._path = f"{_GROUP}/{namespace}/leases"
        self.namespace = namespace
        self.name = name
        self._holder = holder
        self._clock = clock
        self._held_until = 0.0
        self._seen: tuple[str, float] = ("", clock())  # the version of the object, and since when
        self.problem = ""
        self._verb = ""  # what was asked last
        #: The Lease that has to be held before this one is taken, so that two gateways never hold a part each.
        self.after: Lease | None = None

    def left_s(self) -> float:
        """Seconds for which a write may go on; 0: another one writes."""
        return max(self._held_until - self._clock(), 0.0)

    async def run(self) -> None:
        """Take it when it is free, and renew it, until this is cancelled; it is given back then."""
        try:
            while True:
                was_held = self.left_s() > 0
                try:
                    async with asyncio.timeout(RENEW_S):
                        await self.step()
                    self._tell("")
                except ApiError as error:
                    right = missing_right(self._verb, "coordination.k8s.io", "leases", self.namespace, self.name)
                    self._tell(right if error.is_forbidden else f"lease {self.namespace}/{self.name}: {error}")
                except UNREACHABLE as error:
                    self._tell(f"lease {self.namespace}/{self.name}: {error or type(error).__name__}")
                if was_held != (self.left_s() > 0):
                    what = "no longer written" if was_held else "written"
                    log.info("status is %s by this gateway (Lease %s/%s)", what, self.namespace, self.name)
                await asyncio.sleep(RENEW_S * random.uniform(0.8, 1.2))  # noqa: S311 (no secret)
        finally:
            await self._give_back()

    def _tell(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("%s", problem)
        self.problem = problem

    async def step(self) -> None:
        """Ask once. Raises ApiError, and what is in UNREACHABLE."""
        if self.after is not None and not self.after.left_s():
            await self._give_back()
            return
        asked_at = self._clock()
        self._verb = "get"
        try:
            found = await self._client.get(f"{self._path}/{self.name}")
        except ApiError as error:
            if not error.is_not_found:
                raise
            found = {"metadata": {"name": self.name}, "spec": {}}
            is_free, is_new = True, True
        else:
            version = str(found["metadata"].get("resourceVersion"))
            if version != self._seen[0]:
                self._seen = (version, self._clock())
            holder = (found.get("spec") or {}).get("holderIdentity") or ""
            duration_s = float((found.get("spec") or {}).get("leaseDurationSeconds") or DURATION_S)
            is_free = holder in ("", self._holder) or self._clock() - self._seen[1] > duration_s
            is_new = False
        if is_free:
            await self._take(found, asked_at, is_new=is_new)

    async def _take(self, found: Mapping[str, Any], asked_at: float, *, is_new: bool) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = found.get("spec") or {}
        is_ours = before.get("holderIdentity") == self._holder
        spec = {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": int(DURATION_S),
            "acquireTime": before.get("acquireTime", now) if is_ours else now,
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (not is_ours and not is_new),
        }
        metadata = {"name": self.name, "namespace": self.namespace}
        if version := found["metadata"].get("resourceVersion"):
            metadata["resourceVersion"] = version
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        self._verb = "patch" if is_new else "update"
        try:
            if is_new:
                # Server-side apply, whose right to create can be limited to a name. Who comes second is no owner of
                # these fields, and is refused.
                made = await self._client.apply(
                    f"{self._path}/{self.name}", body, self._holder[-_MAX_MANAGER:], force=False
                )
            else:
                made = await self._client.send("PUT", f"{self._path}/{self.name}", None, body)
        except ApiError as error:
            if not error.is_conflict:
                raise
            self._held_until = 0.0  # another one was quicker
            return
        self._seen = (str(made["metadata"].get("resourceVersion")), self._clock())
        self._held_until = asked_at + DURATION_S - MARGIN_S

    async def _give_back(self) -> None:
        """Let another one have it at once."""
        if not self.left_s():
            return
        self._held_until = 0.0
        try:
            async with asyncio.timeout(2.0):
                found = await self._client.get(f"{self._path}/{self.name}")
                spec = found.get("spec") or {}
                if spec.get("holderIdentity") == self._holder:
                    spec = {**spec, "holderIdentity": "", "leaseDurationSeconds": 1}
                    await self._client.send("PUT", f"{self._path}/{self.name}", None, {**found, "spec": spec})
        except (ApiError, *UNREACHABLE):
            return  # it ends by itself


class LeasePlace(NamedTuple):
    """A namespace with Leases. `is_of_all`: they are for objects of all namespaces."""

    namespace: str
    is_of_all: bool = False


def lease_place(options: ClusterOptions, key: Key) -> LeasePlace:
    """The place of the Leases that decide who writes the status of an object.

    Installations that read some namespaces meet in these namespaces. Those that read all meet in `lease_namespace`,
    and leave a namespace in which one of the former holds its Lease (`LeasesElsewhere`).
    """
    if not key[2]:
        return LeasePlace(options.lease_namespace)
    return LeasePlace(key[2]) if options.namespaces else LeasePlace(options.lease_namespace, True)


def lease_places(options: ClusterOptions) -> tuple[LeasePlace, ...]:
    """All places that `lease_place` gives; the first is that of objects without a namespace."""
    others = map(LeasePlace, options.namespaces) if options.namespaces else (LeasePlace(options.lease_namespace, True),)
    return tuple(dict.fromkeys((LeasePlace(options.lease_namespace), *others)))


class StatusLeases:
    """The Leases of this gateway: in each place of `lease_places` one for each GatewayClass."""

    def __init__(self, client: ApiClient, options: ClusterOptions, holder: str) -> None:
        self._client = client
        self._options = options
        self._holder = holder
        self._leases: dict[LeasePlace, dict[str, Lease]] = {place: {} for place in lease_places(options)}
        self._elsewhere: dict[str, LeasesElsewhere] = {}  # by GatewayClass

    def want(self, classes: Iterable[str]) -> Iterator[Lease]:
        """Want the Leases of these GatewayClasses, too. Yields each new one, which the caller has to run."""
        for name in classes:
            if not self._options.namespaces and name not in self._elsewhere:
                self._elsewhere[name] = LeasesElsewhere(self._client, lease_names(name)[0])
            for place, leases in self._leases.items():
                if name not in leases:
                    lease_name = lease_names(name)[place.is_of_all]
                    leases[name] = Lease(self._client, place.namespace, lease_name, self._holder)
                    ordered = [leases[each] for each in sorted(leases)]
                    for lease, before in zip(ordered, (None, *ordered), strict=False):
                        lease.after = before
                    yield leases[name]

    def left_s(self, key: Key | None) -> float:
        """Seconds for which the status of this object may be written; None: that of any object."""
        if key is None:
            return max(map(self._held_s, self._leases))
        place = lease_place(self._options, key)
        is_of_another = place.is_of_all and key[2] != self._options.lease_namespace
        if is_of_another and any(each.may_be_held(key[2]) for each in self._elsewhere.values()):
            return 0.0
        return self._held_s(place)

    @property
    def is_leader(self) -> bool:
        """Whether this gateway writes what has no namespace."""
        return self._held_s(next(iter(self._leases))) > 0

    @property
    def problems(self) -> list[str]:
        """Why Leases cannot be read or written, a sentence for each."""
        found = [lease.problem for leases in self._leases.values() for lease in leases.values()]
        found += [leases.problem for leases in self._elsewhere.values()]
        return list(filter(None, found))

    async def look_elsewhere(self, on_change: Callable[[], None]) -> None:
        """Look where other installations write, while this one writes in all namespaces. Runs until it is cancelled."""
        while not self._options.namespaces:
            held_s = self._held_s(LeasePlace(self._options.lease_namespace, True))
            if held_s and any([await each.look() for each in tuple(self._elsewhere.values())]):
                on_change()
            await asyncio.sleep(RENEW_S if held_s else 1.0)

    def _held_s(self, place: LeasePlace) -> float:
        """Seconds for which all Leases of a place are ours."""
        return min((lease.left_s() for lease in self._leases[place].values()), default=0.0)
