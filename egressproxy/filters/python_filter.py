"""Python filter: a file of the operator's, beside the manifest that names it.

The file is imported under a private name, so that it neither shadows a module nor is shadowed. It is trusted like the
configuration: it runs in the gateway's process. So it never comes through the admin API, and no object that does can
name one (`config.compile.extensions.extension_compiler`). Errors while it is loaded are reported with file and line;
errors while requests are served only with their type, because their text may contain a secret.
"""

from __future__ import annotations

import hashlib
import re
import sys
import traceback
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from io import StringIO
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from egressproxy.filters.author_errors import not_built, problems
from egressproxy.filters.base import Filter, FilterContext, FilterType, Phase, UnusableReference, overrides
from egressproxy.filters.filter_trace import log
from egressproxy.filters.settings import CalledBackendRef, FilterConfig, SecretRef
from egressproxy.model import state_folder

SUFFIX: Final = ".py"


@dataclass(frozen=True, slots=True)
class PythonConfig(FilterConfig):
    """`path` starts at the folder of the manifest and stays inside. `config` is for the file's `Config` model; with
    `plainConfig` a file without one gets it as it is written. The values of `secrets` and the calls of `backends` are
    in the filter's context.
    """

    path: str
    config: dict[str, Any] = field(default_factory=dict)
    secrets: tuple[SecretRef, ...] = ()
    backends: tuple[CalledBackendRef, ...] = ()
    plain_config: bool = False


def load_filter(context: FilterContext) -> Filter:
    """Import the file and build its filter. Raises ValueError with the file, the line and the remedy; UnusableReference
    where the constructor fails and the config names Secrets, one of which may be at fault.
    """
    config: PythonConfig = context.config
    path = _locate(context)
    module = _import(path, context.name)
    cls = _filter_class(module, path)
    inner = replace(context, config=_read_config(module, config, path))
    if cls.runs_in is None:
        _expect_method(cls, context.phase, path, f"is placed in phase {context.phase.value}")
    failure = UnusableReference if config.secrets else ValueError
    try:
        made = cls(inner) if "__init__" in _own_names(cls) else cls()  # type: ignore[call-arg]
    except (Exception, SystemExit) as error:
        line = _line_in(error, path)
        where = _at(path, "__init__") if line == "?" else f"{path}:{line}"
        raise failure(not_built(error, f"{where}: ", cls.__name__)) from None
    for at, problem in problems(made):
        raise ValueError(f"{f'{path}:{at}' if at else _at(path, problem.partition(' ')[0])}: {problem}")
    try:
        made.runs_in = frozenset((context.phase,) if made.runs_in is None else map(Phase, made.runs_in))
    except (TypeError, ValueError):
        raise ValueError(
            f"{_at(path, 'runs_in')}: runs_in of class {cls.__name__} is not a set of phases: write"
            f" frozenset((Phase.…,)) with phases of {', '.join(phase.name for phase in Phase)}"
        ) from None
    for phase in Phase:
        if phase in made.runs_in:
            _expect_method(cls, phase, path, f"has {phase.value} in runs_in")
    return made


def _at(path: Path, name: str) -> str:
    """`FILE:LINE` of the class, function or attribute of this name."""
    said = re.compile(rf"\s*(?:(?:async\s+)?def\s+|class\s+)?{re.escape(name)}\b")
    lines = path.read_text("utf-8", "replace").splitlines()
    return next((f"{path}:{number}" for number, line in enumerate(lines, 1) if said.match(line)), str(path))


def _expect_method(cls: type[Filter], phase: Phase, path: Path, why: str) -> None:
    """Raise ValueError where the class would run in this phase and do nothing there."""
    if overrides(cls, phase):
        return
    near = get_close_matches(phase.method, _own_names(cls), n=1)
    hint = f" (did you mean this by `{near[0]}`?)" if near and near[0] not in vars(Filter) else ""
    others = [each for each in Phase if overrides(cls, each)]
    if not hint and others:
        methods = ", ".join(f"`{each.method}`" for each in others)
        phases = others[0].value if len(others) == 1 else f"one of {', '.join(each.value for each in others)}"
        hint = f" (it has {methods}: place it in phase {phases}, or write the phases that it needs into `runs_in`)"
    where = _at(path, near[0] if near and near[0] not in vars(Filter) else cls.__name__)
    raise ValueError(f"{where}: class {cls.__name__} {why} but has no `{phase.method}`{hint}")


def _locate(context: FilterContext) -> Path:
    """The file that the config names. Raises ValueError where none may be run, or there is none."""
    config: PythonConfig = context.config
    folder, relative = context.folder, config.path
    if not folder:
        raise ValueError(
            f"{relative}: a Python filter needs a manifest in a folder; this object did not come from a file"
        )
    root = Path(folder).resolve()
    path = (root / relative).resolve()
    if Path(relative).is_absolute() or not path.is_relative_to(root):
        raise ValueError(f"{relative}: the path has to stay inside the folder of the manifest")
    if not relative.endswith(SUFFIX) or path.suffix != SUFFIX:
        raise ValueError(f"{relative}: the file of a filter has a name that ends in {SUFFIX}; so does a link to it")
    if state_folder.holds(path):
        raise ValueError(
            f"{relative}: the file is in a folder of objects that were written through the API (--state-dir), where"
            " nothing is run; put it beside the manifest, in a folder of --config"
        )
    if not path.is_file():
        raise ValueError(f"{relative}: there is no such file in {root}")
    return path


def _inspect(context: FilterContext) -> None:
    """Raise ValueError for a file that is missing or has a syntax error. Runs nothing."""
    _compiled(_locate(context))


def _compiled(path: Path) -> CodeType:
    """Compile the file. Raises ValueError with file and line."""
    try:
        code: CodeType = compile(path.read_bytes(), str(path), "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else "?"
        raise ValueError(f"{path}:{line}: {type(error).__name__}: {error}") from None
    return code


def _import(path: Path, filter_name: str) -> ModuleType:
    """Run the file as a module. If it fails, the previous version stays registered. What it prints is logged: standard
    output may be the access log.
    """
    code = _compiled(path)
    name = "_egressproxy_filter_" + hashlib.sha256(str(path).encode()).hexdigest()[:16]
    module = ModuleType(name)
    module.__file__ = str(path)
    module.__dict__["print"] = partial(_print, filter_name)
    before = sys.modules.get(name)
    sys.modules[name] = module  # pydantic and dataclasses look up their module while they make classes
    try:
        exec(code, module.__dict__)  # noqa: S102 - the user's own filter
    except BaseException as error:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        if not isinstance(error, Exception | SystemExit):
            raise
        raise ValueError(f"{path}:{_line_in(error, path)}: {type(error).__name__}: {error}") from None
    return module


def _print(_filter_name: str, /, *values: object, file: Any = None, **how: Any) -> None:
    """`print` in the file of a filter."""
    text = StringIO()
    print(*values, file=text if file is None else file, **how)
    for line in text.getvalue().splitlines():
        log.warning("filter %s: %s", _filter_name, line)


def _filter_class(module: ModuleType, path: Path) -> type[Filter]:
    named = getattr(module, "filter_class", None)
    if named is not None:
        if not (isinstance(named, type) and issubclass(named, Filter)):
            raise ValueError(
                f"{_at(path, 'filter_class')}: `filter_class` is not a subclass of egressproxy.filters.Filter"
            )
        return named
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Filter) and value.__module__ == module.__name__
    ]
    if not found:
        methods = {phase.method for phase in Phase}
        for name, value in vars(module).items():
            if isinstance(value, type) and value.__module__ == module.__name__ and methods & vars(value).keys():
                raise ValueError(f"{_at(path, name)}: class {name} is no filter: write `class {name}(Filter):`")
    if len(found) != 1:
        names = ", ".join(sorted(cls.__name__ for cls in found)) or "none"
        raise ValueError(f"{path}: one subclass of egressproxy.filters.Filter is expected (found: {names}); "
                         "name it with `filter_class = …`")  # fmt: skip
    return found[0]


def _read_config(module: ModuleType, config: PythonConfig, path: Path) -> object:
    raw, model = config.config, getattr(module, "Config", None)
    if model is None:
        if config.plain_config:
            return raw
        if raw:
            raise ValueError(
                f"{path}: a config is given, but the file has no `Config` model: write `class Config(BaseModel):` with"
                f" {', '.join(raw)}, or plainConfig: true beside the config"
            )
        return FilterConfig()
    from pydantic import BaseModel, ValidationError

    from egressproxy.filters.validation import faults

    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise ValueError(
            f"{_at(path, 'Config')}: `Config` is not a pydantic model: write `class Config(BaseModel):`, after"
            " `from pydantic import BaseModel`"
        )
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise ValueError(f"{path}: {faults(error, model)}") from None
    except Exception as error:  # of a validator
        raise ValueError(not_built(error, f"{path}:{_line_in(error, path)}: ", "Config")) from None


def _own_names(cls: type[Filter]) -> set[str]:
    return {name for base in cls.__mro__ if issubclass(base, Filter) and base is not Filter for name in vars(base)}


def _line_in(error: BaseException, path: Path) -> int | str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return lines[-1] if lines and lines[-1] is not None else "?"


def _revision(context: FilterContext) -> str:
    """The hash of the file: a changed file is a new instance, although the spec is equal."""
    return hashlib.sha256(_locate(context).read_bytes()).hexdigest()


PYTHON = FilterType(
    name="egressproxy.io/Python:v1",
    phases=frozenset(Phase),
    config_model=PythonConfig,
    build=load_filter,
    also=frozenset(Phase),
    revision=_revision,
    inspect=_inspect,
    summary="A filter of your own: one Python file beside the manifest.",
)
