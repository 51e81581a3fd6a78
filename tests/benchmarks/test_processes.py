import os
import sys
from types import SimpleNamespace

from benchmarks.processes import Child
from benchmarks.workloads.base import CpuTime
from tests.support.waiting import wait_until

IDLE = "import os, time; os.fork(); time.sleep(60)"


def test_time_and_memory_are_those_of_the_whole_tree(tmp_path):
    child = Child("idle", [sys.executable, "-c", IDLE], tmp_path, None)
    try:
        while len(child.memory()) < 2:
            assert child.is_running(), child.complaint()
        memory, times = child.memory(), child.cpu_times()
        assert len(times) == 2
        assert child.cpu_s() >= sum(times.values())
        assert all(each.resident >= each.proportional >= 0 for each in memory.values())
        assert max(each.resident for each in memory.values()) > 1000
        tree = list(memory)
    finally:
        child.stop()
        for number in child_ids(tree):
            os.kill(number, 15)
    assert not child.is_running()


#: A child that has worked for a while ends when it is told to.
BUSY = """
import os, time
from pathlib import Path
if os.fork() == 0:
    while time.process_time() < 0.2: pass
    Path("worked").touch()
    while not Path("end").exists(): time.sleep(0.005)
    os._exit(0)
os.wait()
Path("gone").touch()
time.sleep(60)
"""


def test_a_process_that_ends_in_a_round_takes_nothing_from_its_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    child = Child("busy", [sys.executable, "-c", BUSY], tmp_path, None)
    try:
        wait_until((tmp_path / "worked").exists)
        cpu = CpuTime(SimpleNamespace(child=child, name="busy"))
        assert child.cpu_s() >= 0.2
        (tmp_path / "end").touch()
        wait_until((tmp_path / "gone").exists)
        assert 0 <= cpu.seconds() < 0.2
    finally:
        child.stop()


def child_ids(tree):
    """Those that are still there: only the first is stopped with SIGTERM."""
    return [number for number in tree[1:] if os.path.exists(f"/proc/{number}")]
