"""Who is out of service, as a file says it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from egressproxy.gateway.identity.killed_identities import KilledIdentities, KilledIdentity
from egressproxy.processes.workers.killed_file import NAME, read_killed, write_killed

KILLED = KilledIdentities((KilledIdentity("alice", "stolen ütoken", 5.5), KilledIdentity("bob")))


def test_what_is_written_is_read_again_and_is_for_nobody_else(tmp_path: Path):
    file = tmp_path / NAME
    assert read_killed(file).every == ()
    before = os.umask(0)
    try:
        write_killed(file, KILLED)
    finally:
        os.umask(before)
    assert read_killed(file).every == KILLED.every
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    write_killed(file, KilledIdentities())
    assert read_killed(file).every == ()
    assert [each.name for each in tmp_path.iterdir()] == [NAME]


def test_what_a_killed_process_has_left_half_written_is_not_read(tmp_path: Path):
    file = tmp_path / NAME
    write_killed(file, KILLED)
    (tmp_path / f"{NAME}.new").write_text('{"version": 1, "kil')
    assert read_killed(file).every == KILLED.every
    write_killed(file, KilledIdentities())
    assert read_killed(file).every == ()


def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path):
    file = tmp_path / NAME
    file.mkdir()
    with pytest.raises(OSError, match=r"."):
        write_killed(file, KILLED)
    assert [each.name for each in tmp_path.iterdir()] == [NAME]


def _written(**changed: object) -> str:
    return json.dumps({"version": 1, "killed": [{"identity": "alice", "why": "", "since": 1, **changed}]})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is not JSON"),
        (_written()[:-5], "it is not JSON"),
        ('{"version": 1, "version": 1, "killed": []}', "version"),
        ("[]", "version 1"),
        ('{"version": 2, "killed": []}', "version 1"),
        ('{"version": 1}', "version 1"),
        ('{"version": 1, "killed": {}}', "no list"),
        ('{"version": 1, "killed": ["alice"]}', r"killed\[0\]"),
        (_written(identity=""), r"killed\[0\]: the identity has no name"),
        (_written(identity="a\x00"), r"killed\[0\].*printed"),
        (_written(identity=7), r"killed\[0\]"),
        (_written(since="now"), r"killed\[0\]"),
        (_written(more=1), r"killed\[0\]"),
        (json.dumps({"version": 1, "killed": [{"identity": "a", "why": "", "since": 1}] * 2}), "twice"),
    ],
    ids=range(14),
)  # fmt: skip
def test_a_damaged_file_says_nothing(tmp_path: Path, text: str, words: str):
    file = tmp_path / NAME
    file.write_text(text)
    with pytest.raises(ValueError, match=words):
        read_killed(file)


def test_only_a_file_is_read(tmp_path: Path):
    real = tmp_path / "real"
    write_killed(real, KILLED)
    (tmp_path / "link").symlink_to(real)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for name in ("link", "fifo", "folder"):
        with pytest.raises((OSError, ValueError)):
            read_killed(tmp_path / name)
