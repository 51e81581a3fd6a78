from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from egressproxy.cli.main import main
from egressproxy.config.resources.kinds import KINDS


def test_without_a_kind_the_schema_is_that_of_every_kind():
    schema = json.loads(CliRunner().invoke(main, ["schema"]).output)
    assert "EgressPolicy" in json.dumps(schema)
    assert schema["$schema"].startswith("https://json-schema.org/")


def test_the_kinds_can_be_listed():
    lines = CliRunner().invoke(main, ["schema", "--list"]).output.splitlines()
    assert len(lines) == len(KINDS)
    assert any(line.split() == ["EgressPolicy", "egressproxy.io/v1alpha1"] for line in lines)


@pytest.mark.parametrize("kind", [known.KIND for known in KINDS])
def test_every_kind_has_a_schema(kind: str):
    result = CliRunner().invoke(main, ["schema", "--kind", kind])
    assert result.exit_code == 0
    schema = json.loads(result.output)
    assert {"apiVersion", "kind", "metadata"} <= set(schema["properties"])
    assert schema["properties"]["kind"]["const"] == kind


def test_a_kind_needs_no_option():
    with_option = CliRunner().invoke(main, ["schema", "--kind", "EgressPolicy"])
    assert CliRunner().invoke(main, ["schema", "EgressPolicy"]).output == with_option.output
    assert CliRunner().invoke(main, ["schema", "EgressPolicy", "--kind", "Gateway"]).exit_code == 2


def test_a_name_of_several_groups_means_ours_unless_the_group_is_given():
    def title(kind: str) -> str:
        return str(json.loads(CliRunner().invoke(main, ["schema", "--kind", kind]).output)["title"])

    assert title("backend") == title("Backend.egressproxy.io")
    assert title("Backend") != title("Backend.gateway.networking.k8s.io")


def test_an_unknown_kind_names_the_nearest():
    result = CliRunner().invoke(main, ["schema", "--kind", "HTPRoute"])
    assert result.exit_code == 2
    assert "did you mean HTTPRoute?" in result.output
