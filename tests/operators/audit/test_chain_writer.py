"""Chains as they are written, and what verification finds of everything that may be done to them."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from egressproxy.model.secret import SecretBytes
from egressproxy.operators.audit import chain_writer
from egressproxy.operators.audit.chain_writer import ChainSettings, ChainWriter
from egressproxy.operators.audit.verification import Anchor, ChainReport, records_in, verified
from tests.support.waiting import wait_until

KEY = SecretBytes(b"k" * 32)
PLAIN = ChainSettings(sync="Never")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[ChainWriter]]:
    writers: list[ChainWriter] = []
    yield writers
    for writer in writers:
        writer.close()


def write(folder: Path, count: int, settings: ChainSettings = PLAIN) -> ChainWriter:
    """A writer that has written so many records, and let the chain go."""
    writer = ChainWriter(folder)
    writer.start(settings)
    for number in range(count):
        writer.put(settings, {"kind": "exchange", "number": number})
    writer.close()
    return writer


def found(folder: Path, key: SecretBytes | None = None, **more: Any) -> list[str]:
    return [str(finding) for report in verified(folder, key, **more) for finding in report.findings]


def only(folder: Path, key: SecretBytes | None = None) -> ChainReport:
    (report,) = verified(folder, key)
    return report


def last_file(folder: Path) -> Path:
    return sorted(folder.glob("audit-0-*.jsonl"))[-1]


# --- what is written is whole -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("key", [None, KEY], ids=["sha256", "hmac"])
@pytest.mark.parametrize("sync", ["Always", "Interval", "Never"])
def test_a_chain_is_whole(tmp_path: Path, key: SecretBytes | None, sync: str):
    write(tmp_path, 100, ChainSettings(key=key, sync=sync))
    report = only(tmp_path, key)
    assert (report.records, report.files, report.findings) == (101, 1, [])
    assert [record["number"] for record in records_in(tmp_path) if record["kind"] == "exchange"] == list(range(100))


def test_the_next_process_goes_on_with_the_chain(tmp_path: Path):
    write(tmp_path, 3)
    write(tmp_path, 2)
    report = only(tmp_path)
    assert (report.records, report.files, report.findings) == (7, 2, [])
    assert report.end.seq == 7


def test_rotation_keeps_the_chain(tmp_path: Path):
    settings = ChainSettings(sync="Never", rotate_bytes=1000)
    write(tmp_path, 50, settings)
    report = only(tmp_path)
    assert report.files > 5
    assert report.findings == []
    assert max(path.stat().st_size for path in tmp_path.glob("*.jsonl")) < 1300


def test_rotation_by_age(tmp_path: Path):
    write(tmp_path, 3, ChainSettings(sync="Never", rotate_s=1e-6))
    assert only(tmp_path).files == 4
    assert found(tmp_path) == []


def test_processes_have_chains_of_their_own(tmp_path: Path, made: list[ChainWriter]):
    for _ in range(3):
        made.append(ChainWriter(tmp_path))
        made[-1].start(PLAIN)
    assert [writer.chain for writer in made] == ["0", "1", "2"]
    for writer in made:
        writer.put(PLAIN, {"kind": "exchange"})
        writer.close()
    assert [(report.chain, report.findings) for report in verified(tmp_path, None)] == [("0", []), ("1", []), ("2", [])]


def test_another_key_begins_another_file(tmp_path: Path):
    writer = ChainWriter(tmp_path)
    writer.start(PLAIN)
    writer.put(PLAIN, {"kind": "exchange"})
    writer.put(ChainSettings(key=KEY, sync="Never"), {"kind": "exchange"})
    writer.close()
    algorithms = [record["algorithm"] for record in records_in(tmp_path) if record["kind"] == "open"]
    assert algorithms == ["sha256", "hmac-sha256"]


def test_files_are_for_their_owner(tmp_path: Path):
    write(tmp_path, 1)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.jsonl")} == {0o600}


# --- what is done to it is found --------------------------------------------------------------------------------------
Change = Callable[[list[bytes]], None]


def changed(lines: list[bytes]) -> None:
    lines[3] = lines[3].replace(b'"number":2', b'"number":9')


def removed(lines: list[bytes]) -> None:
    del lines[3]


def moved(lines: list[bytes]) -> None:
    lines[3], lines[4] = lines[4], lines[3]


def doubled(lines: list[bytes]) -> None:
    lines.insert(4, lines[3])


def no_json(lines: list[bytes]) -> None:
    lines[3] = b"{}\n"


def cut_in_the_middle(lines: list[bytes]) -> None:
    lines[3] = lines[3][:20] + b"\n"


@pytest.mark.parametrize("key", [None, KEY], ids=["sha256", "hmac"])
@pytest.mark.parametrize("change", [changed, removed, moved, doubled, no_json, cut_in_the_middle])
def test_what_is_changed_in_the_middle_is_found_with_its_line(tmp_path: Path, key: SecretBytes | None, change: Change):
    write(tmp_path, 10, ChainSettings(key=key, sync="Never"))
    path = last_file(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    change(lines)
    path.write_bytes(b"".join(lines))
    told = found(tmp_path, key)
    assert told
    assert told[0].startswith((f"{path}:4:", f"{path}:5:"))


@pytest.mark.parametrize("position", range(0, 400, 7))
def test_any_byte_that_is_changed_is_found(tmp_path: Path, position: int):
    write(tmp_path, 2)
    path = last_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1
    path.write_bytes(data)
    assert found(tmp_path) != []


@pytest.mark.parametrize("count", [1, 2, 5, 10, 11])
def test_records_removed_at_the_end_are_found_by_the_head(tmp_path: Path, count: int):
    write(tmp_path, 10)
    path = last_file(tmp_path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-count]))
    assert f"the last {count} records are missing: the head says 11" in " ".join(found(tmp_path))


def test_a_removed_head_is_found(tmp_path: Path):
    write(tmp_path, 2)
    (tmp_path / "audit-0.head").unlink()
    assert "there is no head" in found(tmp_path)[0]


def test_an_older_head_hides_nothing_from_an_anchor(tmp_path: Path):
    write(tmp_path, 2)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    write(tmp_path, 2)
    end = only(tmp_path).end
    for path in tmp_path.iterdir():
        path.unlink()
    for path, data in before.items():
        path.write_bytes(data)
    assert found(tmp_path) == []  # all of an earlier day is put back
    assert found(tmp_path, anchors=[Anchor("0", end.seq, end.hash)]) == [
        f"{last_file(tmp_path)}: record {end.seq} of the anchor is not there"
    ]


def test_a_chain_made_anew_is_found_by_an_anchor_and_needs_the_key(tmp_path: Path):
    write(tmp_path, 3, ChainSettings(key=KEY, sync="Never"))
    end = only(tmp_path, KEY).end
    for path in tmp_path.iterdir():
        path.unlink()
    write(tmp_path, 3)  # by somebody without the key
    assert any("without the key" in each for each in found(tmp_path, KEY))
    assert any(
        "another than the anchor's" in each for each in found(tmp_path, anchors=[Anchor("0", end.seq, end.hash)])
    )


def test_a_missing_file_is_found(tmp_path: Path):
    write(tmp_path, 30, ChainSettings(sync="Never", rotate_bytes=1000))
    files = sorted(tmp_path.glob("audit-0-*.jsonl"))
    files[1].unlink()
    told = found(tmp_path)
    assert "file 2 of chain 0 is missing" in told[0]
    assert "records were removed" in told[1]


def test_the_first_files_may_be_archived_if_that_is_said(tmp_path: Path):
    write(tmp_path, 30, ChainSettings(sync="Never", rotate_bytes=1000))
    sorted(tmp_path.glob("audit-0-*.jsonl"))[0].unlink()
    assert "file 1 of chain 0 is missing" in found(tmp_path)[0]
    assert found(tmp_path, is_partial=True) == []


def test_a_chain_that_is_gone_is_found_by_an_anchor(tmp_path: Path):
    assert found(tmp_path, anchors=[Anchor("4", 2, "0" * 64)]) == [f"{tmp_path}: chain 4 is gone: it had a record 2"]


def test_an_hmac_is_not_verified_without_its_key(tmp_path: Path):
    write(tmp_path, 2, ChainSettings(key=KEY, sync="Never"))
    assert found(tmp_path) == [f"{last_file(tmp_path)}:1: the file is hashed with a key: give --key-file"]
    assert any("changed, or the key is another" in each for each in found(tmp_path, SecretBytes(b"x" * 32)))


# --- crashes and full disks -------------------------------------------------------------------------------------------
def test_a_record_cut_by_a_crash_is_taken_out_and_told(tmp_path: Path):
    write(tmp_path, 3)
    path = last_file(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"chain":"0","seq":5,"pre')
    write(tmp_path, 1)
    assert found(tmp_path) == [f"{last_file(tmp_path)}:1: a crash has cut a record off: 25 bytes"]
    assert only(tmp_path).records == 6


def test_records_that_a_crash_has_lost_are_told(tmp_path: Path):
    write(tmp_path, 3)
    path = last_file(tmp_path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    write(tmp_path, 1)
    assert found(tmp_path) == [f"{last_file(tmp_path)}:1: 1 records before this one were lost or removed"]


def test_a_killed_process_leaves_a_chain_that_goes_on(tmp_path: Path):
    program = f"""
import itertools
from pathlib import Path
from egressproxy.operators.audit.chain_writer import ChainSettings, ChainWriter
writer = ChainWriter(Path({str(tmp_path)!r}))
writer.start(ChainSettings())
print("started", flush=True)
for number in itertools.count():
    while writer.why_not(ChainSettings(max_waiting=100)):
        pass
    writer.put(ChainSettings(), {{"kind": "exchange", "number": number, "text": "x" * 1000}})
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        wait_until(lambda: sum(path.stat().st_size for path in tmp_path.glob("*.jsonl")) > 100_000)
        process.kill()
    write(tmp_path, 1)
    assert [each for each in found(tmp_path) if "a crash has cut" not in each] == []


class FullDisk:
    """A file that takes so many bytes and no more, until `is_full` is unset."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.is_full = True

    def write(self, data: bytes) -> int:
        if not self.is_full:
            return int(self.file.write(data))
        return int(self.file.write(data[:7]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_a_full_disk_is_told_and_loses_nothing(
    tmp_path: Path, made: list[ChainWriter], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(chain_writer, "RETRY_S", 0.01)
    writer = ChainWriter(tmp_path)
    made.append(writer)
    writer.start(PLAIN)
    disk = FullDisk(writer._file)
    writer._file = disk  # type: ignore[assignment]
    writer.put(PLAIN, {"kind": "exchange", "number": 1})
    wait_until(lambda: writer.why_not(PLAIN))
    assert os.strerror(errno.ENOSPC) in writer.why_not(PLAIN)
    writer.put(PLAIN, {"kind": "exchange", "number": 2})
    disk.is_full = False
    wait_until(lambda: not writer.why_not(PLAIN))
    writer.close()
    assert found(tmp_path) == []
    assert [record["number"] for record in records_in(tmp_path) if record["kind"] == "exchange"] == [1, 2]


def test_too_many_waiting_are_refused_then_counted(tmp_path: Path, made: list[ChainWriter]):
    settings = ChainSettings(sync="Never", max_waiting=5)
    writer = ChainWriter(tmp_path)
    made.append(writer)
    writer.start(settings)
    with writer._wake:  # the thread waits for it
        writer._records.extend([(settings, {"kind": "exchange"})] * 5)
        assert writer.why_not(settings) == "5 records wait to be written"
        writer._records.extend([(settings, {"kind": "exchange"})] * 5)
        assert len(writer._records) == 10
        writer.lost += 3
    writer.close()
    assert [record["lost"] for record in records_in(tmp_path) if record["kind"] == "gap"] == [3]
    assert any("3 records could not be written here" in each for each in found(tmp_path))


def test_a_folder_that_is_not_there_is_an_error_each_time_until_it_is(tmp_path: Path, made: list[ChainWriter]):
    writer = ChainWriter(tmp_path / "audit")
    made.append(writer)
    for _ in range(2):
        with pytest.raises(OSError, match="No such file"):
            writer.start(PLAIN)
    (tmp_path / "audit").mkdir()
    writer.start(PLAIN)
    with open(tmp_path / "audit" / "audit-0.lock", "ab") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Unwritable:
    def __str__(self) -> str:
        raise RecursionError


def test_a_record_that_cannot_be_made_is_told_and_the_next_is_written(tmp_path: Path):
    writer = ChainWriter(tmp_path)
    writer.start(PLAIN)
    writer.put(PLAIN, {"kind": "exchange", "request_id": "7", "text": Unwritable()})
    writer.put(PLAIN, {"kind": "exchange", "request_id": "8"})
    writer.close()
    assert found(tmp_path) == []
    told = [
        (record["request_id"], record.get("error")) for record in records_in(tmp_path) if record["kind"] == "exchange"
    ]
    assert told == [("7", "RecursionError"), ("8", None)]


def test_a_record_is_one_line_whatever_it_says(tmp_path: Path):
    writer = ChainWriter(tmp_path)
    writer.start(PLAIN)
    writer.put(PLAIN, {"kind": "exchange", "text": 'a\n","hash":"' + "0" * 64 + '"}\n\ud800', "bytes": b"x"})
    writer.close()
    assert found(tmp_path) == []
    assert len(last_file(tmp_path).read_bytes().splitlines()) == 2
    assert json.loads(last_file(tmp_path).read_bytes().splitlines()[1])["text"].startswith("a\n")


@pytest.mark.parametrize("key", [None, KEY], ids=["sha256", "hmac"])
@pytest.mark.parametrize("is_removed", [True, False])
def test_records_removed_with_the_head_are_found_when_a_process_has_gone_on(
    tmp_path: Path, key: SecretBytes | None, is_removed: bool
):
    settings = ChainSettings(key, sync="Never")
    write(tmp_path, 5, settings)
    path, head = last_file(tmp_path), tmp_path / "audit-0.head"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
    if is_removed:
        head.unlink()
    else:
        head.write_bytes(b"{}\n")
    write(tmp_path, 1, settings)
    (finding,) = found(tmp_path, key)
    assert "the head was" in finding


def test_nothing_is_written_behind_a_link(tmp_path: Path):
    folder, elsewhere = tmp_path / "audit", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.write_bytes(b"of somebody else")
    (folder / "audit-0.head.new").symlink_to(elsewhere)
    write(folder, 1)
    assert elsewhere.read_bytes() == b"of somebody else"
    assert found(folder) == []
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())


@pytest.mark.parametrize("name", ["audit-0-000009.jsonl", "audit-0.lock", "audit-0.head"])
@pytest.mark.parametrize("is_link", [True, False])
def test_what_is_no_file_of_its_own_is_refused(tmp_path: Path, name: str, is_link: bool):
    """A link would have what it leads to cut off; a pipe would hold the gateway up."""
    folder, elsewhere = tmp_path / "audit", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.write_bytes(b"of somebody else")
    if is_link:
        (folder / name).symlink_to(elsewhere)
    else:
        os.mkfifo(folder / name)
    with pytest.raises(OSError, match=r"symbolic|regular|No such device"):
        ChainWriter(folder).start(PLAIN)
    assert elsewhere.read_bytes() == b"of somebody else"
