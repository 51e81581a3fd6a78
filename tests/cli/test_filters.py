from __future__ import annotations

import json

import yaml
from click.testing import CliRunner

from egressproxy.cli.main import main
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


FILTER_TYPE = """
apiVersion: egressproxy.io/v1alpha1
kind: FilterType
metadata: {name: stamp}
spec:
  type: acme.example.com/Stamp:v1
  summary: Stamps.
  phases: [request-headers]
  configSchema: {inline: {required: [team]}}
  python: {path: stamp.py}
"""


def ask(*words: object) -> str:
    result = CliRunner().invoke(main, ["filters", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.output


def test_filter_types_of_manifests_are_listed_with_what_declares_them(tmp_path):
    (tmp_path / "type.yaml").write_text(FILTER_TYPE)
    assert "acme.example.com/Stamp:v1" not in ask()
    lines = ask("-c", tmp_path).splitlines()
    at = lines.index("acme.example.com/Stamp:v1")
    assert lines[at + 1 : at + 5] == [
        "    Stamps.",
        "    phases: request-headers",
        "    support: implementation-specific",
        "    from: FilterType stamp",
    ]
    one = json.loads(ask("acme.example.com/Stamp:v1", "-c", tmp_path))
    assert one["acme.example.com/Stamp:v1"]["config"] == {"required": ["team"]}


def test_a_manifest_that_cannot_be_read_is_told_with_its_line(tmp_path):
    (tmp_path / "type.yaml").write_text(FILTER_TYPE.replace("phases", "phase"))
    result = CliRunner().invoke(main, ["filters", "-c", str(tmp_path)])
    assert result.exit_code == 2
    assert "type.yaml:8" in result.output + result.stderr


def test_json_yaml_and_wide_say_the_same():
    listed = json.loads(ask("-o", "json"))
    assert yaml.safe_load(ask("-o", "yaml")) == listed
    head, *rows = ask("-o", "wide").splitlines()
    assert head.split() == ["TYPE", "SUPPORT", "FROM", "PHASES"]
    assert [row.split()[:2] for row in rows] == [[name, about["support"]] for name, about in listed.items()]


def test_each_type_has_a_support_level():
    listed = json.loads(ask("-o", "json"))
    levels = {name.removeprefix("egressproxy.io/"): about["support"] for name, about in listed.items()}
    assert levels["CredentialInjector:v1"] == levels["QoSController:v1"] == "core"
    assert levels["HeaderPolicy:v1"] == "extended"
    assert levels["Python:v1"] == "implementation-specific"
