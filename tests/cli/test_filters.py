from __future__ import annotations

import json

from click.testing import CliRunner

from egressproxy.cli import main
from egressproxy.filters.builtin import BUILTIN


def test_every_type_is_listed_with_its_phases():
    lines = CliRunner().invoke(main, ["filters"]).output.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == sorted(BUILTIN)
    assert "    phases: backend-request" in lines


def test_one_type_is_printed_with_the_schema_of_its_config():
    printed = json.loads(CliRunner().invoke(main, ["filters", "egressproxy.io/BodyLimit:v1"]).output)
    assert "maxBytes" in printed["egressproxy.io/BodyLimit:v1"]["config"]["properties"]


def test_an_unknown_type_names_the_nearest():
    result = CliRunner().invoke(main, ["filters", "egressproxy.io/BodyLimits:v1"])
    assert result.exit_code == 2
    assert "did you mean egressproxy.io/BodyLimit:v1?" in result.output
