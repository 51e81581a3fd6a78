"""The heap in huge pages."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from egressproxy.net.huge_pages import collapse_heap

MIB = 1 << 20


def write(root: Path, path: str, text: str) -> None:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def system(root: Path, *, enabled: str = "always [madvise] never\n", maps: str = "") -> Path:
    write(root, "sys/kernel/mm/transparent_hugepage/enabled", enabled)
    write(root, "sys/kernel/mm/transparent_hugepage/hpage_pmd_size", f"{2 * MIB}\n")
    write(root, "proc/self/maps", maps)
    return root


def line(start: int, size: int, mode: str = "rw-p", rest: str = "00:00 0") -> str:
    return f"{start:x}-{start + size:x} {mode} 00000000 {rest}\n"


#: Collapses 16 MiB of small objects, and prints bytes taken, bytes of huge pages, and bytes that became resident by it.
PROGRAM = """
from egressproxy.net.huge_pages import collapse_heap
from egressproxy.net.memory import ResidentMemory
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
    assert huge >= 4 * MIB
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
            write(root, "sys/kernel/mm/transparent_hugepage/enabled", enabled)
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
