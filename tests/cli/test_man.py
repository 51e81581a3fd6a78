"""The man page that `make man` makes of the help."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

from egressproxy.cli.main import _VERBS

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "man"


@pytest.fixture(scope="module")
def page() -> str:
    loader = SourceFileLoader("man_of_egressproxy", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return "\n".join(module.page()) + "\n"


def test_every_verb_has_a_section_with_its_options(page: str):
    sections = re.findall(r'^\.SS "(.*)"$', page, re.MULTILINE)
    assert {*_VERBS} <= {each.replace("\\-", "-") for each in sections}
    assert "kill\\-switch restore" in sections
    of_run = page.partition('.SS "run"')[2].partition(".SS")[0]
    assert ".B \\-\\-drain\\-timeout" in of_run
    assert "  egressproxy run \\-\\-config policies/\n" in of_run, "examples keep their lines"


def test_nothing_of_the_help_is_a_request(page: str):
    requests = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
    assert requests <= {".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".nf", ".fi"}


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not here: apt-get install mandoc")
def test_mandoc_finds_nothing_wrong(page: str):
    command = ["mandoc", "-Tlint", "-W", "warning"]
    done = subprocess.run(command, input=page, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
