"""The memory of this process, and what its cgroup allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from egressproxy.net.memory import ResidentMemory, cgroup_limit, give_back_memory, memory_for_each

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
