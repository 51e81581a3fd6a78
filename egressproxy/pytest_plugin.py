"""The pytest plugin: the fixture `egress_gateway`, the marker `egress`, and the option `--egress-record`.

pytest imports this module in every run of an environment with egressproxy: what costs time is imported by tests that
ask for a gateway.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import pytest

if TYPE_CHECKING:
    from egressproxy.tapes import Run
    from egressproxy.testing import Gateway

_MODES: Final = ("none", "once", "all")
_GATEWAY: Final = pytest.StashKey["Gateway"]()
#: Characters of a folder's name, and exchanges that a failed test shows.
_MAX_NAME: Final = 150
_SHOWN: Final = 20
_FIELDS: Final = ("method", "authority", "path", "status", "reason", "detail")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("egressproxy").addoption(
        "--egress-record", choices=_MODES, default=None,
        help="tapes of the marker egress: replay and nothing else (none), record what has no tapes yet (once), or"
        " record again (all). Default: `record` of the marker, else once.",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "egress(policy, allow, intercept, origins, tapes, record): run the test behind a gateway, the fixture"
        " egress_gateway; see docs/testing.md of egressproxy.",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test with the marker has the gateway without asking for the fixture."""
    for item in items:
        names = getattr(item, "fixturenames", None)
        if names is not None and "egress_gateway" not in names and item.get_closest_marker("egress") is not None:
            names.insert(0, "egress_gateway")


@pytest.fixture
def egress_gateway(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    """A gateway for this test, as the marker `egress` has it; its variables are set, so that clients find it."""
    from egressproxy.testing import ConfigError, gateway

    given = _arguments(request.node)
    folder = request.path.parent
    policy = given.pop("policy", ())
    tapes, record = given.pop("tapes", None), given.pop("record", "once")
    if tapes is not None:
        mode = request.config.getoption("--egress-record") or record
        given["tapes"] = _tapes(folder / tapes / _file_name(request.node), mode)
    try:
        made = gateway(*policy if isinstance(policy, list | tuple) else [policy], folder=folder, **given).__enter__()
    except (ConfigError, TypeError, ValueError, OSError) as error:
        raise pytest.fail.Exception(f"the gateway of this test: {error}", pytrace=False) from None
    try:
        request.node.stash[_GATEWAY] = made
        for name, value in made.env.items():
            monkeypatch.setenv(name, value)
        yield made
    finally:
        made.close()
    if made.report is not None and made.report.missing:
        lines = "\n".join(made.report.lines())
        pytest.fail(f"requests have no tape (--egress-record all records all of them):\n{lines}", pytrace=False)


def _arguments(node: pytest.Item) -> dict[str, Any]:
    """Those of the markers of a test: that of a function goes before that of its class or module."""
    given: dict[str, Any] = {}
    for marker in reversed([*node.iter_markers("egress")]):
        given |= {**({"policy": marker.args} if marker.args else {}), **marker.kwargs}
    return given


def _tapes(folder: Path, mode: str) -> Run:
    """The tapes of one test."""
    from egressproxy import tapes

    if mode not in _MODES:
        pytest.fail(f"record={mode!r} of the marker egress: write one of {', '.join(_MODES)}", pytrace=False)
    try:
        if mode == "all" or (mode == "once" and not any(folder.glob("*.yaml"))):
            return tapes.record(folder)
        return tapes.replay(folder, strict=True)
    except tapes.TapeError as error:
        raise pytest.fail.Exception(f"{error} (here: --egress-record once)", pytrace=False) from None


def _file_name(node: pytest.Item) -> str:
    """`test_module/test_name[parameter]`, as a file system takes it."""
    test = node.nodeid.partition("::")[2].replace("::", ".")
    name = re.sub(r"[^\w.\[\]-]+", "_", test)[:_MAX_NAME]
    if name != test:  # another test may have this name, too
        name = f"{name}-{crc32(test.encode()):08x}"
    return f"{node.path.stem}/{name}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """A failed test shows what its clients asked of the gateway."""
    gateway = item.stash.get(_GATEWAY, None)
    if gateway is None or call.excinfo is None or call.when != "call":
        return
    lines = gateway.log
    told = [
        " ".join(str(line[name]) for name in _FIELDS if line.get(name, "-") not in ("-", ""))
        for line in lines[-_SHOWN:]
    ]
    item.add_report_section("call", "egress gateway", "\n".join(told) or "nothing was asked")
