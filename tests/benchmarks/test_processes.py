import os
import sys

from benchmarks.processes import Child

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


def child_ids(tree):
    """Those that are still there: only the first is stopped with SIGTERM."""
    return [number for number in tree[1:] if os.path.exists(f"/proc/{number}")]
