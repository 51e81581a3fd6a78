"""What is told of a configuration: rejected, not served as written, or with certificates that end soon."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

import pytest

from egressproxy.app import App
from egressproxy.config.reading.problems import ConfigError, Problem, Severity
from egressproxy.model.certificate import CertificateUse, Validity
from egressproxy.processes.loader.notices import MAX_TOLD
from egressproxy.processes.loader.result import CompiledConfig, pack_shown
from egressproxy.processes.workers.data_plane import ConfigRefused
from egressproxy.reloads import ConfigManager
from egressproxy.run_options import RunOptions


@pytest.fixture
async def live(tmp_path: Path) -> ConfigManager:
    return App(RunOptions(config=(tmp_path,), admin=None, access_log="off"))._live


@pytest.fixture
def made_of(live: ConfigManager, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What catalogues were made of, each of which has an object of that name."""
    made: list[bytes] = []

    async def catalogue(declared: bytes) -> bytes:
        made.append(declared)
        return pack_shown([(("", "ConfigMap", "ns", declared.decode()), {}, 1, None, "")])

    async def applied(_asked: object) -> None:
        pass

    monkeypatch.setattr(live._loader, "catalogue", catalogue)
    monkeypatch.setattr(live._data_plane, "apply", applied)
    return made


def names(live: ConfigManager) -> list[str]:
    return [each.name for each in live.published.objects()]


async def test_a_catalogue_that_nobody_asks_for_is_not_made(live: ConfigManager, made_of: list[bytes]):
    await live.put_in_service(CompiledConfig(declared=b"a"))
    assert (made_of, names(live)) == ([], [])


async def test_the_catalogue_is_made_anew_where_other_types_are_declared(live: ConfigManager, made_of: list[bytes]):
    await live.show_catalogue()
    assert names(live) == ["{}"]
    for declared in (b"a", b"a", b"b"):
        await live.put_in_service(CompiledConfig(declared=declared))
        assert names(live) == [declared.decode()]
    assert made_of == [b"{}", b"a", b"b"]


async def test_a_catalogue_that_cannot_be_made_is_told(
    live: ConfigManager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def catalogue(_declared: bytes) -> bytes:
        raise OSError("no memory")

    monkeypatch.setattr(live._loader, "catalogue", catalogue)
    await live.show_catalogue()
    assert caplog.messages == ["the catalogue of filter types cannot be shown: no memory"]
    assert names(live) == []


async def test_every_problem_of_a_rejected_configuration_is_a_record_of_its_own(
    live: ConfigManager, caplog: pytest.LogCaptureFixture
):
    live._rejected(ConfigRefused("a.yaml:1:1: this\nb.yaml:2:2: that"))
    assert caplog.messages[1:] == ["a.yaml:1:1: this", "b.yaml:2:2: that"]


async def test_of_thousands_of_problems_the_log_is_told_the_first(
    live: ConfigManager, caplog: pytest.LogCaptureFixture
):
    """To say them all would hold up traffic, and fill the queue of what is to be logged."""
    problems = [Problem("a.yaml", number + 1, 1, "", "", "this") for number in range(5000)]
    live._rejected(ConfigError(problems))
    assert len(caplog.messages) < MAX_TOLD + 10
    assert "and 4800 more, which `egressproxy check` shows" in caplog.messages
    caplog.clear()
    live._tell_shortcomings(problems)
    assert len(caplog.messages) == MAX_TOLD + 1
    caplog.clear()
    live._tell_shortcomings(problems)
    assert not caplog.messages


async def test_findings_are_told_in_the_order_of_lines_and_notes_last(
    live: ConfigManager, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "egressproxy")
    places = {1: Severity.NOTE, 10: Severity.WARNING, 9: Severity.UNSERVED}
    found = [Problem("a.yaml", line, 1, "", "", "this", severity=each) for line, each in places.items()]
    live._tell_shortcomings(found)
    assert [re.findall(r"a.yaml:(\d+):", message) for message in caplog.messages] == [["9"], ["10"], ["1"]]


async def test_a_certificate_that_is_renewed_late_is_told_once(live: ConfigManager, caplog: pytest.LogCaptureFixture):
    now = time.time()
    late = Validity(CertificateUse.CLIENT, "Secret", "agents", "ours", now - 900, now + 100, now + 100)
    good = Validity(CertificateUse.LISTENER, "Secret", "agents", "front", now - 100, now + 900, now + 900)
    for _ in range(2):
        live.certificates.show((late, good))
    assert [record.message.partition(" in ")[0] for record in caplog.records] == [
        "the client certificate of Secret agents/ours expires"
    ]
