"""What pyproject.toml cannot say: the modules that are compiled, where EGRESSPROXY_COMPILE is set (`make wheel`).

Without it nothing is compiled, and no compiler is needed. What is compiled says pyproject.toml, under
[tool.egressproxy]; docs/compiled.md says why.

With `1` they are compiled twice. The first result counts what it passes while a gateway is under the load of the soak
(`benchmarks.soak`), and the second has what is passed often side by side, and calls within it where that is shorter.
That takes GCC. `untrained` compiles once, in half the time, with any compiler.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
WANTED = os.environ.get("EGRESSPROXY_COMPILE", "")
TRAINED, UNTRAINED = "1", "untrained"
#: Nothing but Python calls into the library: its own functions call each other directly.
ALL = ["-fvisibility=hidden"]
COUNTING = ["-fprofile-generate"]
#: What the load did not pass is compiled as it is without counts, and not for the least size.
COUNTED = ["-fprofile-use", "-fprofile-partial-training", "-fprofile-correction", "-Wno-missing-profile"]
TRAINING = ["-m", "benchmarks.soak", "--minutes", "0.5", "--seed", "1"]
TRAINING_S = 900  # it takes 50 seconds
#: A compiler of a large module takes 330 MiB.
MOST_AT_ONCE = 8


def compiled() -> list[Extension]:
    """The extension modules that mypyc makes."""
    try:
        from mypyc.build import mypycify
    except ImportError:
        message = "EGRESSPROXY_COMPILE needs what the extra `compile` of pyproject.toml has (`make wheel` installs it)"
        raise SystemExit(message) from None
    modules = tomllib.loads((HERE / "pyproject.toml").read_text())["tool"]["egressproxy"]["compiled"]
    paths = [f"{module.replace('.', '/')}.py" for module in modules]
    missing = [path for path in paths if not (HERE / path).is_file()]
    if missing:
        raise SystemExit(
            f"pyproject.toml, tool.egressproxy.compiled: {len(missing)} are not here, such as {missing[0]}"
        )
    return list(mypycify(paths, opt_level="3", multi_file=True, group_name="egressproxy"))


class Build(build_ext):
    """Compiles several sources at once, and all of them twice where the result is trained."""

    def build_extensions(self) -> None:
        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        at_once = min(allowed, MOST_AT_ONCE)
        optimized = [*COUNTED, f"-flto={at_once}"]
        if WANTED == TRAINED:
            self._check(optimized)
        self.compiler.compile = several_at_once(self.compiler.compile, at_once)
        self.force = True  # the second time the sources are the same, and the options are not
        [group] = [each for each in self.extensions if len(each.sources) > 1]  # the others only name their part of it
        always = [*group.extra_compile_args, *ALL]
        for options in [COUNTING, optimized] if WANTED == TRAINED else [[]]:
            group.extra_compile_args, group.extra_link_args = [*always, *options], [*ALL, *options]
            super().build_extensions()
            if options is COUNTING:
                try:
                    self._train(len(group.sources))
                except BaseException:
                    for library in Path(self.build_lib).rglob("*.so"):
                        library.unlink()  # it counts
                    raise

    def _check(self, options: list[str]) -> None:
        """What the training needs, before the minutes that come before it."""
        missing = [name for name in ("trustme", "uvloop", "h2", "cryptography") if find_spec(name) is None]
        if not (HERE / "benchmarks" / "soak").is_dir():
            missing.append(f"{HERE}/benchmarks/soak, which a checkout has")
        with tempfile.TemporaryDirectory() as name:
            source = Path(name, "empty.c")
            source.touch()
            command = [*self.compiler.compiler_so, *COUNTING, *options, "-c", str(source), "-o", f"{source}.o"]
            try:
                subprocess.run(command, capture_output=True, check=True)  # noqa: S603   the build's own
            except (OSError, subprocess.CalledProcessError):
                missing.append(f"GCC 10 or newer ({self.compiler.compiler_so[0]} is not it)")
        if missing:
            raise untrained(f"the training needs what is not here: {'; '.join(missing)}")

    def _train(self, count: int) -> None:
        """Put the compiled gateway under load: as it ends, it writes what it has counted, for each of the objects."""
        for old in Path(self.build_temp).rglob("*.gcda"):
            old.unlink()
        with tempfile.TemporaryDirectory(prefix="egressproxy-training-") as name:
            place, results = Path(name), Path(name, "results")
            for package in ("egressproxy", "benchmarks"):
                shutil.copytree(HERE / package, place / package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
            shutil.copytree(self.build_lib, place, dirs_exist_ok=True)
            command = [sys.executable, *TRAINING, "--out", str(results)]
            kept = {key: value for key, value in os.environ.items() if not key.startswith(("EGRESSPROXY_", "GCOV_"))}
            paths = os.pathsep.join(filter(None, [name, os.environ.get("PYTHONPATH")]))
            try:
                done = subprocess.run(  # noqa: S603   all of it is ours
                    command, env={**kept, "PYTHONPATH": paths}, cwd=place, capture_output=True, text=True, check=False,
                    timeout=TRAINING_S,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise untrained(f"the training load was not over after {TRAINING_S} s") from None
            # Whether it was flat is not asked here: a build machine may be busy.
            if not list(results.glob("*.json")):
                raise untrained(f"{(done.stdout + done.stderr).strip()}\nthe training load did not run to its end")
        found = sum(1 for _ in Path(self.build_temp).rglob("*.gcda"))
        if found != count:
            raise untrained(f"the training load has left {found} counts of {count} objects")


def untrained(why: str) -> SystemExit:
    """The build has failed in a way that this avoids."""
    return SystemExit(f"{why}\nEGRESSPROXY_COMPILE={UNTRAINED} does without training")


def several_at_once(compile_some: Callable[..., list[str]], count: int) -> Callable[..., list[str]]:
    """The same for one source at a time, so many at once."""

    def compile_all(sources: list[str], *args: Any, **options: Any) -> list[str]:
        with ThreadPoolExecutor(count) as pool:
            made = pool.map(lambda source: compile_some([source], *args, **options), sources)
            return [name for names in made for name in names]

    return compile_all


if WANTED in ("", "0"):
    shutil.rmtree(HERE / "build" / "lib", ignore_errors=True)  # else modules of an earlier version go into the wheel
    setup()
elif WANTED in (TRAINED, UNTRAINED):
    setup(ext_modules=compiled(), cmdclass={"build_ext": Build})
else:
    raise SystemExit(f"EGRESSPROXY_COMPILE is {WANTED!r}: it takes {TRAINED!r}, {UNTRAINED!r}, or '0' for no compiling")
