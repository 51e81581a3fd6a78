"""What a gateway has seen, in the cluster: Events with their counts, and the catalogue of filter types."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from egressproxy.config.served_kinds import ServedKind
from egressproxy.kubernetes.observed import EventWriter, write_catalogue
from egressproxy.model.published_object import PublishedObject
from egressproxy.processes.loader.catalog_object import CATALOG_KEY
from egressproxy.processes.loader.result import pack_shown
from egressproxy.telemetry.event_aggregator import EventType, InvolvedObject, Notice
from tests.kubernetes.kit import client_of
from tests.support.api_server import ApiServer
from tests.support.waiting import until

EVENT = ServedKind("events.k8s.io", "Event", ("v1",))
CONFIG_MAP = ServedKind("", "ConfigMap", ("v1",))
SUBJECT = InvolvedObject("Gateway", "infra", "gw")
GATEWAY = PublishedObject(
    "gateway.networking.k8s.io", "Gateway", "infra", "gw",
    json.dumps({"apiVersion": "gateway.networking.k8s.io/v1", "metadata": {"uid": "the-uid"}}).encode(),
)  # fmt: skip
NOTICE = Notice(
    EventType.WARNING, "DestinationNotAllowed", "Request", SUBJECT, None, "a.example is not allowed", count=1
)


async def test_an_event_is_written_once_and_then_counted(tmp_path):
    server = ApiServer((EVENT,))
    async with server.running():
        client = await client_of(tmp_path, server)
        writer = EventWriter(client, lambda: [GATEWAY])
        task = asyncio.create_task(writer.run())
        writer.show([(1, NOTICE)])
        await until(lambda: server.objects)
        (made,) = server.objects.values()
        assert made["regarding"]["uid"] == "the-uid"
        assert not any(name.startswith("deprecated") for name in made)
        assert (made["reason"], made["type"], made["note"]) == (NOTICE.reason, "Warning", NOTICE.message)
        writer.show([(1, NOTICE)])
        writer.show([(1, replace(NOTICE, count=7))])
        await until(lambda: server.asked("PATCH"))
        (made,) = server.objects.values()
        assert made["series"]["count"] == 7
        assert len(server.asked("POST")) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


async def test_an_object_that_is_made_again_has_events_of_its_own(tmp_path):
    """`kubectl describe` shows those with its uid."""
    server, there = ApiServer((EVENT,)), [GATEWAY]
    async with server.running():
        client = await client_of(tmp_path, server)
        writer = EventWriter(client, lambda: there)
        task = asyncio.create_task(writer.run())
        writer.show([(1, NOTICE)])
        await until(lambda: server.objects)
        there[0] = replace(GATEWAY, manifest=GATEWAY.manifest.replace(b"the-uid", b"another"))
        for count in (2, 3):
            writer.show([(1, replace(NOTICE, count=count))])
            await until(lambda count=count: len([*server.asked("POST"), *server.asked("PATCH")]) == count)
        found = {each["regarding"]["uid"]: each.get("series", {}).get("count") for each in server.objects.values()}
        assert found == {"the-uid": None, "another": 3}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


async def test_events_that_may_not_be_written_are_told_once(tmp_path, caplog):
    server = ApiServer((EVENT,))
    server.forbidden.add("events")
    async with server.running():
        client = await client_of(tmp_path, server)
        writer = EventWriter(client, lambda: [GATEWAY])
        task = asyncio.create_task(writer.run())
        for count in (1, 2):
            writer.show([(1, replace(NOTICE, count=count))])
            await until(lambda count=count: len(server.asked("POST")) == count)
        told = "Events cannot be written in namespace infra: cannot create events.events.k8s.io in namespace infra"
        assert caplog.text.count(told) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


async def test_the_catalogue_is_applied(tmp_path):
    server = ApiServer((CONFIG_MAP,))
    manifest = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": CATALOG_KEY[2], "name": CATALOG_KEY[3]},
        "data": {"catalog.json": "{}"},
    }  # fmt: skip
    async with server.running():
        client = await client_of(tmp_path, server)
        await write_catalogue(client, pack_shown([(CATALOG_KEY, manifest, 1, None, "")]))
        assert server.objects["configmaps", *CATALOG_KEY[2:]]["data"] == {"catalog.json": "{}"}
        await client.close()
