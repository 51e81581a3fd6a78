"""How notices become Events: collapsed, counted, bounded, and logged without a flood."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from egressproxy.telemetry.event_aggregator import MAX_SIMILAR, EventType, InvolvedObject, Notice
from egressproxy.telemetry.events import COMBINED, MAX_AGE_S, MAX_EVENTS, WINDOW_S, Events
from egressproxy.telemetry.log_rate import LINES
from egressproxy.telemetry.metrics import Metrics

GATEWAY = InvolvedObject("Gateway", "agents", "gw")
NOTICE = Notice(EventType.WARNING, "DestinationNotAllowed", "Deny", GATEWAY, None, "evil.test is not allowed", count=1)


class World:
    """Events with a clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.metrics = Metrics("1")
        self.events = Events(self.metrics, clock=lambda: self.now)

    def tell(self, count: int = 1, **more: object) -> None:
        at = {"first_s": self.now, "last_s": self.now}
        self.events.add([replace(NOTICE, count=count, **{**at, **more})])  # type: ignore[arg-type]

    @property
    def all(self) -> list[Notice]:
        return [notice for _, notice in self.events.all()]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level("INFO", "egressproxy.events")
    return lambda: caplog.messages


def test_the_same_again_is_one_event_with_a_count_and_its_times(world: World):
    world.tell()
    world.now += 30
    world.tell(4)
    (event,) = world.all
    assert (event.count, event.last_s - event.first_s) == (5, 30)


def test_what_the_access_log_tells_on_the_same_terminal_is_not_logged_again(lines: Callable[[], list[str]]):
    events = Events(Metrics("1"), logs_exchanges=False)
    events.add([replace(NOTICE, is_of_exchange=True)])
    assert lines() == []
    events.add([replace(NOTICE, reason="ConnectionLimit")])
    assert len(lines()) == 1


def test_another_object_reason_message_or_policy_is_another_event(world: World):
    world.tell()
    world.tell(regarding=InvolvedObject("Gateway", "agents", "other"))
    world.tell(reason="SniMismatch")
    world.tell(message="other.test is not allowed")
    world.tell(related=InvolvedObject("EgressPolicy", "agents", "rules"))
    assert [event.count for event in world.all] == [1] * 5


def test_after_a_silence_it_is_another_event(world: World):
    world.tell()
    world.now += WINDOW_S + 1
    world.tell()
    assert [event.count for event in world.all] == [1, 1]
    assert len({number for number, _ in world.events.all()}) == 2


def test_notices_of_two_workers_are_one_event(world: World):
    world.tell(2, first_s=world.now - 3)
    world.tell(3, first_s=world.now - 5, last_s=world.now - 1)
    (event,) = world.all
    assert (event.count, event.first_s, event.last_s) == (5, world.now - 5, world.now)


def test_many_messages_of_one_reason_are_combined(world: World):
    for number in range(50):
        world.tell(message=f"h{number}.test is not allowed")
    found = world.all
    assert len(found) == MAX_SIMILAR + 1
    combined = found[-1]
    assert combined.message == f"{COMBINED}h49.test is not allowed"
    assert combined.count == 50 - MAX_SIMILAR


def test_what_was_combined_already_joins_the_combined(world: World):
    world.tell(3, is_combined=True)
    world.tell(2, is_combined=True, message="b.test is not allowed")
    (event,) = world.all
    assert (event.count, event.message) == (5, f"{COMBINED}b.test is not allowed")


def test_messages_that_went_silent_make_room(world: World):
    for number in range(MAX_SIMILAR):
        world.tell(message=f"h{number}.test")
    world.now += WINDOW_S + 1
    world.tell(message="new.test")
    assert world.all[-1].message == "new.test"


def test_the_number_is_bounded_and_the_oldest_go(world: World):
    for number in range(MAX_EVENTS + 10):
        world.tell(regarding=InvolvedObject("Gateway", "agents", f"gw{number}"))
    found = world.all
    assert len(found) == MAX_EVENTS
    assert found[0].regarding.name == "gw10"
    assert len(world.events._groups) == MAX_EVENTS


def test_what_happened_again_is_not_the_oldest(world: World):
    world.tell()
    for number in range(MAX_EVENTS - 1):
        world.tell(regarding=InvolvedObject("Gateway", "agents", f"gw{number}"))
    world.tell()
    world.tell(regarding=InvolvedObject("Gateway", "agents", "one more"))
    assert NOTICE.regarding in {event.regarding for event in world.all}


def test_after_an_hour_it_is_forgotten(world: World):
    world.tell()
    version = world.events.version
    world.now += MAX_AGE_S + 1
    assert world.all == []
    assert world.events.version != version


def test_a_line_is_logged_at_the_first_time_and_at_every_doubling(world: World, lines: Callable[[], list[str]]):
    for _ in range(100):
        world.now += 5
        world.tell()
    counts = ["", " (2 times)", " (4 times)", " (8 times)", " (16 times)", " (32 times)", " (64 times)"]
    assert lines() == [f"DestinationNotAllowed on Gateway agents/gw{each}: evil.test is not allowed" for each in counts]


def test_a_flood_of_kinds_has_a_bounded_number_of_lines(world: World, lines: Callable[[], list[str]]):
    for number in range(500):
        world.tell(regarding=InvolvedObject("Gateway", "agents", f"gw{number}"))
    assert len(lines()) == LINES
    world.now += 2
    world.tell(regarding=InvolvedObject("Gateway", "agents", "last"))
    assert lines()[LINES] == f"{500 - LINES} earlier events were not logged"


def test_what_the_log_has_already_is_not_logged_again(world: World, lines: Callable[[], list[str]]):
    world.events.add([replace(NOTICE, first_s=world.now, last_s=world.now)], is_logged=True)
    assert lines() == []
    assert len(world.all) == 1


def test_they_are_counted_by_type_and_reason(world: World):
    world.tell(3)
    world.tell(2, message="other.test")
    world.tell(severity=EventType.NORMAL, reason="ConfigurationAccepted")
    counted = {("Warning", "DestinationNotAllowed"): 5, ("Normal", "ConfigurationAccepted"): 1}
    assert world.metrics.events == counted


def test_the_version_changes_with_every_change(world: World):
    versions = [world.events.version]
    for _ in range(2):
        world.tell()
        versions.append(world.events.version)
    assert len(set(versions)) == 3
