"""The memory of this process, and what its cgroup allows."""

from __future__ import annotations

import mmap
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import egressproxy
from egressproxy.net.process import (
    OTHER_RELEASE,
    ResidentMemory,
    cgroup_limit,
    child_command,
    collapse_heap,
    descriptors,
    descriptors_for_traffic,
    ending,
    give_back_memory,
    memory_for_each,
)
from tests.support.waiting import WAIT_S

MIB = 1 << 20


def write(root: Path, path: str, text: str) -> None:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def test_what_is_resident_grows_with_what_is_used_and_what_is_free_is_given_back():
    memory = ResidentMemory()
    give_back_memory()
    before = memory.read()
    pieces = [bytes([number % 256]) * 40_000 for number in range(2000)]  # below malloc's threshold for mmap
    top = memory.read()
    assert top - before > 60 * MIB
    kept = pieces[-1:]
    del pieces
    give_back_memory()
    assert memory.read() - before < 20 * MIB
    assert len(kept) == 1
    memory.close()


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        ("0::/\n", {"sys/fs/cgroup/memory.max": "268435456\n"}, 256 * MIB),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "max\n"}, 0),
        ("0::/\n", {}, 0),
        (
            "0::/kubepods/pod1/c\n",
            {
                "sys/fs/cgroup/kubepods/pod1/c/memory.max": "max\n",
                "sys/fs/cgroup/kubepods/pod1/memory.max": "134217728\n",
                "sys/fs/cgroup/kubepods/memory.max": "1073741824\n",
            },
            128 * MIB,
        ),
        (
            "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n",
            {"sys/fs/cgroup/memory/memory.limit_in_bytes": "268435456\n"},  # a container sees its own as the root
            256 * MIB,
        ),
        ("4:memory:/\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0),
    ],
)
def test_the_limit_of_the_cgroup_in_both_versions(tmp_path: Path, cgroup: str, files: dict[str, str], limit: int):
    write(tmp_path, "proc/self/cgroup", cgroup)
    for path, text in files.items():
        write(tmp_path, path, text)
    assert cgroup_limit(tmp_path) == limit


def test_without_cgroups_there_is_no_limit(tmp_path: Path):
    assert (cgroup_limit(tmp_path), memory_for_each(4, tmp_path)) == (0, 0)


@pytest.mark.parametrize(
    ("limit", "workers", "each"), [(256, 1, 192), (256, 2, 128), (96, 1, 128), (1024, 1, 1024 - 128), (1024, 4, 224)]
)
def test_workers_share_what_the_others_leave_and_each_has_what_it_needs(
    tmp_path: Path, limit: int, workers: int, each: int
):
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", str(limit * MIB))
    assert memory_for_each(workers, tmp_path) == each * MIB


def test_a_process_whose_files_are_another_release_does_nothing_and_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("egressproxy.net.process.release", lambda: "0.0+1")
    done = subprocess.run(child_command("print('here')"), capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (OTHER_RELEASE, "", "")
    assert "another release than this process, whose files were replaced" in ending(done.returncode)


def test_it_finds_modules_where_this_process_does_and_the_environment_changes_nothing(tmp_path: Path):
    (tmp_path / "egressproxy.py").write_text("raise SystemExit('not me')")
    command = child_command("import egressproxy; print(egressproxy.__file__, __debug__, sys.flags.dev_mode)")
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PYTHONOPTIMIZE": "1", "PYTHONDEVMODE": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.stdout.split() == [egressproxy.__file__, "True", "False"], done.stderr


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (0, "ended with status 0"),
        (3, "ended with status 3"),
        (-11, "was ended by SIGSEGV"),
        (-9, "was ended by SIGKILL (as the system does where memory is short)"),
        (-250, "was ended by signal 250"),
    ],
)
def test_how_it_ended(status: int, told: str):
    assert ending(status) == told


@pytest.mark.parametrize(("limit", "said"), [(1024, 1024), (resource.RLIM_INFINITY, sys.maxsize)])
def test_the_soft_limit_of_the_process_is_what_counts(monkeypatch: pytest.MonkeyPatch, limit: int, said: int):
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (limit, 4096))
    assert descriptors() == said


@pytest.mark.parametrize(("limit", "for_traffic"), [(1024, 960), (100, 50), (resource.RLIM_INFINITY, sys.maxsize)])
def test_some_are_kept_for_the_rest_of_the_process(monkeypatch: pytest.MonkeyPatch, limit: int, for_traffic: int):
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (limit, 4096))
    assert descriptors_for_traffic() == for_traffic


def write_file(root: Path, path: str, text: str) -> None:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def system(root: Path, *, enabled: str = "always [madvise] never\n", maps: str = "") -> Path:
    write_file(root, "sys/kernel/mm/transparent_hugepage/enabled", enabled)
    write_file(root, "sys/kernel/mm/transparent_hugepage/hpage_pmd_size", f"{2 * MIB}\n")
    write_file(root, "proc/self/maps", maps)
    return root


def line(start: int, size: int, mode: str = "rw-p", rest: str = "00:00 0") -> str:
    return f"{start:x}-{start + size:x} {mode} 00000000 {rest}\n"


#: Collapses 16 MiB of small objects, and prints bytes taken, bytes of huge pages, and bytes that became resident by it.
PROGRAM = """
from egressproxy.net.process import collapse_heap
from egressproxy.net.process import ResidentMemory
kept = [[number] for number in range(200_000)]
memory = ResidentMemory()
before = memory.read()
taken = collapse_heap()
rollup = open("/proc/self/smaps_rollup").read()
huge = int(rollup.partition("AnonHugePages:")[2].split()[0]) << 10
assert kept[100_000] == [100_000]
print(taken, huge, memory.read() - before)
"""


def test_a_heap_of_small_objects_comes_to_lie_in_huge_pages_and_hardly_grows():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    taken, huge, more = map(int, ran.stdout.split())
    if not taken:
        pytest.skip("this kernel collapses nothing: no MADV_COLLAPSE, or huge pages are switched off")
    assert huge >= 2 * MIB  # one page: memory that others use comes in no larger pieces
    assert more < 8 * MIB


@pytest.mark.parametrize("enabled", ["always madvise [never]\n", None])
def test_a_system_without_huge_pages_is_left_alone(tmp_path: Path, enabled: str | None):
    with mmap.mmap(-1, 8 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        area.write(bytes(8 * MIB))
        maps = Path("/proc/self/maps").read_text()
        root = system(tmp_path, maps=maps)
        if enabled is None:
            (root / "sys/kernel/mm/transparent_hugepage/enabled").unlink()
        else:
            write_file(root, "sys/kernel/mm/transparent_hugepage/enabled", enabled)
        assert collapse_heap(root) == 0


def test_files_shared_memory_code_and_stacks_are_not_touched(tmp_path: Path):
    never = 0x1000_0000_0000  # advice about an address where nothing is would be refused, and count as nothing
    with mmap.mmap(-1, 8 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        area.write(bytes(8 * MIB))
        start = next(
            int(each.split("-")[0], 16)
            for each in Path("/proc/self/maps").read_text().splitlines()
            if "rw-p" in each and int(each.split("-")[1].split()[0], 16) - int(each.split("-")[0], 16) >= 8 * MIB
        )
        maps = (
            line(start, 8 * MIB, "rw-s")
            + line(start, 8 * MIB, "r-xp")
            + line(start, 8 * MIB, rest="fe:00 77   /usr/lib/x.so")
            + line(start, 8 * MIB, rest="00:00 0   [stack]")
            + line(start, 1 * MIB)
            + line(never, 8 * MIB)
        )
        assert collapse_heap(system(tmp_path, maps=maps)) == 0


@pytest.mark.parametrize("maps", ["", line(0x1000_0000_0000, 4 * MIB)])
def test_advice_that_the_kernel_refuses_is_no_error(tmp_path: Path, maps: str):
    assert collapse_heap(system(tmp_path, maps=maps)) == 0
