"""Watching files: real folders, real events."""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import watchfiles

from egressproxy.config.reading import watch
from egressproxy.config.reading.watch import changes
from egressproxy.model.secret import SecretSource
from tests.support.mounted import mount
from tests.support.waiting import WAIT_S, until

#: The library's own, where no test stands in for it.
INOTIFY = watchfiles.watch
#: The interval of regular looks here, in milliseconds: a fifth of the product's.
LOOK_MS = 100


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_LOOK_MS", LOOK_MS)


class Watcher:
    """Counts what `changes` yields."""

    def __init__(self, *paths: Path) -> None:
        self.stop = asyncio.Event()
        self.seen: asyncio.Queue[None] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(changes(paths, self.stop)))

    async def _run(self, found: AsyncIterator[None]) -> None:
        async for _ in found:
            self.seen.put_nowait(None)

    async def change(self) -> None:
        await asyncio.wait_for(self.seen.get(), WAIT_S)

    async def quiet(self) -> None:
        """Nothing more is seen, for longer than two regular looks."""
        await asyncio.sleep(2.5 * LOOK_MS / 1000)
        assert self.seen.empty()

    async def close(self) -> None:
        self.stop.set()
        await asyncio.wait_for(self._task, WAIT_S)


@asynccontextmanager
async def watching(*paths: Path) -> AsyncIterator[Watcher]:
    watcher = Watcher(*paths)
    if watchfiles.watch is INOTIFY:
        await until(lambda: watched() >= set(watch._inodes(paths, ()).values()))
    try:
        yield watcher
    finally:
        await watcher.close()


def watched() -> set[int]:
    """The inodes that this process watches, as the kernel tells them (proc(5), fdinfo of inotify)."""
    found: set[int] = set()
    for entry in Path("/proc/self/fdinfo").iterdir():
        with suppress(OSError):  # closed meanwhile
            found |= {int(inode, 16) for inode in re.findall(r"^inotify wd:\S+ ino:(\S+)", entry.read_text(), re.M)}
    return found


def replace(path: Path, text: str) -> None:
    """As editors and configuration managers do: write beside, then rename."""
    fresh = path.with_name(f".{path.name}.tmp")
    fresh.write_text(text)
    fresh.replace(path)


async def test_a_written_file_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a")
    async with watching(tmp_path) as watcher:
        (tmp_path / "a.yaml").write_text("b")
        await watcher.change()
        await watcher.quiet()


async def test_a_change_is_seen_by_its_event_and_not_by_the_regular_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_LOOK_MS", int(2000 * WAIT_S))
    async with watching(tmp_path) as watcher:
        (tmp_path / "a.yaml").write_text("a")
        await watcher.change()


async def test_a_file_that_comes_or_goes_is_seen(tmp_path: Path) -> None:
    async with watching(tmp_path) as watcher:
        (tmp_path / "a.json").write_text("{}")
        await watcher.change()
        (tmp_path / "a.json").unlink()
        await watcher.change()


async def test_a_burst_is_one_change(tmp_path: Path) -> None:
    async with watching(tmp_path) as watcher:
        for index in range(20):
            (tmp_path / f"{index}.yaml").write_text("a")
        await watcher.change()
        await watcher.quiet()


async def test_a_replaced_file_is_seen_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("0")
    async with watching(path) as watcher:
        for text in "123":
            replace(path, text)
            await watcher.change()
        await watcher.quiet()


@pytest.mark.parametrize("has_event", [True, False])
async def test_a_change_that_a_regular_look_finds_before_its_event_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_event: bool
) -> None:
    looks: asyncio.Queue[bool] = asyncio.Queue()

    async def looked(*_: object) -> AsyncIterator[bool]:
        while not watcher.stop.is_set():
            yield await looks.get()

    monkeypatch.setattr(watch, "_looks", looked)
    path = tmp_path / "a.yaml"
    path.write_text("0")
    watcher = Watcher(path)
    for text in "12":
        replace(path, text)
        looks.put_nowait(False)
        looks.put_nowait(has_event)
        await watcher.change()
        looks.put_nowait(False)
        await until(looks.empty)
    looks.put_nowait(True)  # written again within one tick of the clock: nothing else says so
    await watcher.change()
    assert watcher.seen.empty()
    watcher.stop.set()
    looks.put_nowait(False)
    await watcher.close()


@pytest.mark.parametrize("given", [".", "a.yaml"])
async def test_a_python_file_beside_the_manifests_is_seen(tmp_path: Path, given: str) -> None:
    (tmp_path / "a.yaml").write_text("a")
    (tmp_path / "filter.py").write_text("a")
    async with watching(tmp_path / given) as watcher:
        (tmp_path / "filter.py").write_text("b")
        await watcher.change()
        replace(tmp_path / "filter.py", "c")
        await watcher.change()
        (tmp_path / "filter.py").unlink()
        await watcher.change()
        await watcher.quiet()


async def test_temporary_files_of_editors_are_no_change(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a")
    async with watching(tmp_path) as watcher:
        for name in (".a.yaml.swp", ".#a.yaml", "#a.yaml#", "a.yaml~", "4913", "notes.txt", ".a.py"):
            (tmp_path / name).write_text("x")
        await watcher.quiet()


async def test_other_files_beside_a_single_file_are_no_change(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a")
    async with watching(tmp_path / "a.yaml") as watcher:
        (tmp_path / "b.yaml").write_text("b")
        await watcher.quiet()


async def test_the_swap_of_a_mounted_config_map_is_one_change(tmp_path: Path) -> None:
    for version in ("..1", "..2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "a.yaml").write_text(version)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    async with watching(tmp_path) as watcher:
        (tmp_path / "..data_tmp").symlink_to("..2")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")
        shutil.rmtree(tmp_path / "..1")
        await watcher.change()
        await watcher.quiet()


async def test_a_folder_that_is_removed_and_made_again_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "conf"
    folder.mkdir()
    (folder / "a.yaml").write_text("a")
    async with watching(folder) as watcher:
        shutil.rmtree(folder)
        await watcher.change()
        folder.mkdir()
        (folder / "a.yaml").write_text("b")
        await watcher.change()
        while True:  # the folder and its file may have been seen one after the other
            try:
                await asyncio.wait_for(watcher.seen.get(), 5 * LOOK_MS / 1000)
            except TimeoutError:
                break
        replace(folder / "a.yaml", "c")
        await watcher.change()


async def test_a_folder_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "later" / "conf"
    async with watching(folder) as watcher:
        folder.mkdir(parents=True)
        (folder / "a.yaml").write_text("a")
        await watcher.change()


async def test_changes_before_the_first_step_count(tmp_path: Path) -> None:
    stop = asyncio.Event()
    found = changes([tmp_path], stop)
    (tmp_path / "a.yaml").write_text("a")
    await asyncio.wait_for(anext(found), WAIT_S)
    stop.set()


async def test_changes_are_found_without_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_inotify(*_args: object, **_options: object) -> AsyncIterator[object]:
        raise OSError("inotify watch limit reached")

    monkeypatch.setattr(watchfiles, "watch", no_inotify)
    async with watching(tmp_path) as watcher:
        (tmp_path / "a.yaml").write_text("a")
        await watcher.change()
        await watcher.quiet()


async def test_a_write_that_leaves_size_and_time_alone_is_still_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a")
    stat = path.stat()
    async with watching(tmp_path) as watcher:
        path.write_text("b")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        await watcher.change()


async def test_stopping_ends_the_watch(tmp_path: Path) -> None:
    async with watching(tmp_path):
        pass


@pytest.mark.parametrize("is_root", [False, True])
async def test_a_mounted_secret_that_is_exchanged_is_a_change(tmp_path: Path, is_root: bool):
    folder = tmp_path / "secrets" / "openai"
    mount(folder, {"token": "a"})
    manifest = tmp_path / "config" / "a.yaml"
    manifest.parent.mkdir()
    manifest.write_text("a")
    source = SecretSource(path=folder.parent) if is_root else SecretSource(name="openai", path=folder)
    stop, seen = asyncio.Event(), asyncio.Queue[None]()

    async def watch() -> None:
        async for _ in changes((manifest, source), stop):
            seen.put_nowait(None)

    task = asyncio.create_task(watch())
    await asyncio.sleep(0)
    mount(folder, {"token": "b"})
    await asyncio.wait_for(seen.get(), WAIT_S)
    (folder / "..noise").write_text("x")
    if is_root:
        mount(folder.parent / "another", {"token": "c"})
    else:
        mount(folder, {"token": "b", "more": "c"})
    await asyncio.wait_for(seen.get(), WAIT_S)
    stop.set()
    await asyncio.wait_for(task, WAIT_S)


async def test_a_secret_whose_file_is_replaced_is_seen_while_something_else_is_written_beside_the_configuration(
    tmp_path: Path,
):
    """A log in the folder above that of the manifests, say: its events came instead of the regular look."""
    manifest, file = tmp_path / "config" / "a.yaml", tmp_path / "raw" / "token"
    for each in (manifest, file):
        each.parent.mkdir()
        each.write_text("a")
    stop, seen, wrote = asyncio.Event(), asyncio.Queue[None](), asyncio.Event()

    async def watch() -> None:
        async for _ in changes((manifest.parent, SecretSource(name="a", path=file.parent)), stop):
            seen.put_nowait(None)

    async def log() -> None:
        while not stop.is_set():
            (tmp_path / "access.log").write_text("x")
            wrote.set()
            await asyncio.sleep(0.005)

    tasks = [asyncio.create_task(each) for each in (watch(), log())]
    await wrote.wait()
    await until(lambda: manifest.parent.stat().st_ino in watched())
    replace(file, "b")
    await asyncio.wait_for(seen.get(), WAIT_S)
    stop.set()
    await asyncio.wait_for(asyncio.gather(*tasks), WAIT_S)


async def test_a_single_file_of_a_secret_that_is_replaced_is_a_change(tmp_path: Path):
    file = tmp_path / "raw" / "token"
    file.parent.mkdir()
    file.write_text("a")
    stop, seen = asyncio.Event(), asyncio.Queue[None]()

    async def watch() -> None:
        async for _ in changes((SecretSource(name="a", path=file),), stop):
            seen.put_nowait(None)

    task = asyncio.create_task(watch())
    await asyncio.sleep(0)
    fresh = file.with_name("fresh")
    fresh.write_text("b")
    fresh.replace(file)
    await asyncio.wait_for(seen.get(), WAIT_S)
    stop.set()
    await asyncio.wait_for(task, WAIT_S)


@pytest.mark.parametrize("where", ["in the folder", "beside the folder"])
async def test_a_name_that_is_no_text_does_not_end_the_watch(tmp_path: Path, where: str):
    """The library that watches cannot say it, and raises a group of exceptions."""
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "a.yaml").write_text("a")
    async with watching(folder) as watcher:
        strange = os.fsencode(folder if where == "in the folder" else tmp_path) + b"/\xff\xfe"
        for _ in range(3):
            os.mkfifo(strange)
            os.unlink(strange)
        replace(folder / "a.yaml", "b")
        await watcher.change()
        assert not watcher._task.done()


async def test_a_folder_whose_name_is_no_text_does_not_end_the_watch(tmp_path: Path):
    """It is no Secret's name, and a reload says so; when it is gone the rest is in force again."""
    stop = asyncio.Event()
    (tmp_path / "agents" / "key").mkdir(parents=True)
    found = changes((SecretSource(path=tmp_path),), stop)
    strange = os.fsencode(tmp_path) + b"/\xff\xfe"
    for act in (lambda: os.mkdir(strange), lambda: os.rmdir(strange), lambda: os.mkdir(strange)):
        seen = asyncio.ensure_future(anext(found))
        await asyncio.sleep(0)
        act()
        await asyncio.wait_for(seen, WAIT_S)
    stop.set()


async def test_what_else_changes_is_seen_by_the_regular_look(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: 1")
    stop, others = asyncio.Event(), ["first"]
    found = changes((tmp_path,), stop, lambda: tuple(others))
    others.append("second")
    await asyncio.wait_for(anext(found), WAIT_S)
    stop.set()


async def test_without_files_what_else_changes_is_seen_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("egressproxy.config.reading.watch.ALONE_S", 0.01)
    stop, others = asyncio.Event(), ["first"]
    found = changes((), stop, lambda: tuple(others))
    others.append("second")
    await asyncio.wait_for(anext(found), WAIT_S)
    stop.set()
    assert [each async for each in found] == []
