import os
import sys
from pathlib import Path

import pytest

from egressproxy.filters.credentials import local_sources
from egressproxy.filters.credentials.config import Command
from egressproxy.filters.credentials.refresher import FetchError
from tests.support.waiting import until


def program(text: str, *arguments: str, **more) -> Command:
    return Command((sys.executable, "-c", text, *arguments), **more)


async def printed(command: Command) -> bytes:
    return (await local_sources.from_command(command)()).value


async def test_a_command_gets_its_arguments_as_they_are_and_no_shell_reads_them():
    assert await printed(program("import sys; print(sys.argv[1])", "$(id); `id` *")) == b"$(id); `id` *\n"


async def test_a_command_sees_only_what_is_named(monkeypatch):
    monkeypatch.setenv("GIVEN", "yes")
    monkeypatch.setenv("HIDDEN", "no")
    seen = await printed(program("import os; print(sorted(os.environ))", environment=("GIVEN", "NOT_SET")))
    assert b"GIVEN" in seen
    assert b"HIDDEN" not in seen
    assert b"NOT_SET" not in seen


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (program("import sys; print('S3CR3T'); sys.exit(3)"), "ended with status 3"),
        (program("pass"), "printed nothing"),
        (program("print('x' * 100)", max_bytes=99), "printed more than 99 bytes"),
        (program("while True: print('x' * 1000)", max_bytes=5000), "printed more than 5000 bytes"),
        (program("import time; time.sleep(600)", timeout_seconds=1), "did not end within 1 s"),
        (Command(("/nowhere/at-all",)), "cannot be started"),
        (Command(("/etc",)), "cannot be started"),
    ],
)
async def test_a_command_that_fails_is_told_without_what_it_printed(command, said):
    with pytest.raises(FetchError, match=said) as caught:
        await printed(command)
    assert "S3CR3T" not in str(caught.value)


def has_ended(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


async def test_a_command_that_is_late_is_ended_with_its_children(tmp_path: Path):
    pid = tmp_path / "pid"
    command = Command(("/bin/sh", "-c", f"sleep 600 & echo $! > {pid}; wait"), timeout_seconds=2)
    with pytest.raises(FetchError):
        await printed(command)
    await until(lambda: has_ended(int(pid.read_text())))


@pytest.mark.parametrize("path", ["/etc/hostname", "../outside", "a/../../outside", "link"])
async def test_a_file_stays_inside_the_folder_of_the_manifest(tmp_path: Path, path: str):
    folder = tmp_path / "manifests"
    folder.mkdir()
    (tmp_path / "outside").write_text("x")
    (folder / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match="stay inside"):
        local_sources.from_file(str(folder), path)


def test_an_object_without_a_file_names_none():
    with pytest.raises(ValueError, match="did not come from a file"):
        local_sources.from_file("", "key")


async def test_a_file_is_read_each_time_and_may_come_later(tmp_path: Path):
    fetch = local_sources.from_file(str(tmp_path), "key")
    with pytest.raises(FetchError, match="cannot be read") as caught:
        await fetch()
    assert caught.value.is_final
    (tmp_path / "key").write_text("one\n")
    assert (await fetch()).value == b"one\n"
    (tmp_path / "key").write_text("two\n")
    assert (await fetch()).value == b"two\n"


async def test_a_link_that_leads_out_later_is_not_followed(tmp_path: Path):
    folder = tmp_path / "manifests"
    folder.mkdir()
    (tmp_path / "outside").write_text("x")
    fetch = local_sources.from_file(str(folder), "key")
    (folder / "key").symlink_to(tmp_path / "outside")
    with pytest.raises(FetchError, match="stay inside"):
        await fetch()


async def test_what_is_no_regular_file_or_too_long_is_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FetchError, match="not a regular file"):
        await local_sources.from_file(str(tmp_path), "pipe")()
    (tmp_path / "long").write_bytes(b"x" * (local_sources.MAX_FILE_BYTES + 1))
    with pytest.raises(FetchError, match="more than"):
        await local_sources.from_file(str(tmp_path), "long")()
