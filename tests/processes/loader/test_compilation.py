"""What the process that loads makes before it is asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from egressproxy.filters.builtin import BUILTIN
from tests.support.waiting import WAIT_S

EXAMPLES = Path(__file__).parents[3] / "config"
PROGRAM = """
import sys
from pathlib import Path
import egressproxy.processes.loader.answer
import egressproxy.kubeapi.write.answer
from egressproxy.config.compile.extensions.config_schema import ADAPTERS
from egressproxy.config.resources.kinds import KINDS
from egressproxy.processes.loader.compilation import preparations
from egressproxy.processes.loader.request import write_request
from egressproxy.processes.loader.result import read_answer

for _ in preparations():
    pass
modules, made = set(sys.modules), len(ADAPTERS)
assert all(kind.__pydantic_complete__ for kind in KINDS)
read_answer(egressproxy.processes.loader.answer.answer(write_request((Path(sys.argv[1]),), ("127.0.0.1",))))
assert len(ADAPTERS) == made
print(*sorted(set(sys.modules) - modules))
"""


def test_a_loading_imports_no_type_of_filter_that_is_not_used():
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from egressproxy.processes.loader.answer import answer\n"
        "from egressproxy.processes.loader.request import write_request\n"
        "answer(write_request((Path(sys.argv[1]),), ('127.0.0.1',)))\n"
        "print(*sys.modules)\n"
    )
    command = [sys.executable, "-c", program, str(EXAMPLES / "minimal.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    modules = {where.partition(":")[0].removeprefix("egressproxy.filters.") for where in BUILTIN.values()}
    imported = {name.removeprefix("egressproxy.filters.") for name in done.stdout.split()}
    assert "base" in imported
    assert modules.isdisjoint(imported)


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_loading_finds_all_that_it_needs_ready(example: Path):
    """What it would import or make itself, each loading would import and make anew."""
    command = [sys.executable, "-c", PROGRAM, str(example)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
