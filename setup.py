"""What pyproject.toml cannot say: the modules that are compiled, where EGRESSPROXY_COMPILE is 1 (`make wheel`).

Without it nothing is compiled, and no compiler is needed. What is compiled says pyproject.toml, under
[tool.egressproxy]; docs/compiled.md says why.
"""

import os
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent


def compiled() -> list[object]:
    """The extension modules that mypyc makes."""
    from mypyc.build import mypycify  # the extra `compile`

    modules = tomllib.loads((HERE / "pyproject.toml").read_text())["tool"]["egressproxy"]["compiled"]
    paths = [f"{module.replace('.', '/')}.py" for module in modules]
    missing = [path for path in paths if not (HERE / path).is_file()]
    if missing:
        raise SystemExit(f"pyproject.toml, tool.egressproxy.compiled: there is no {', '.join(missing)}")
    return list(mypycify(paths, opt_level="3", multi_file=True, group_name="egressproxy"))


setup(ext_modules=compiled() if os.environ.get("EGRESSPROXY_COMPILE") == "1" else [])
