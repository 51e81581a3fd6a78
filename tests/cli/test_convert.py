"""`convert`: manifests on standard output, what was left out on standard error, and the exit status."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from egressproxy.cli.main import main


def converted(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["convert", *map(str, arguments)])


def test_what_is_printed_passes_check(tmp_path: Path):
    source, made = tmp_path / "squid.conf", tmp_path / "made.yaml"
    source.write_text("acl good dstdomain .good.example\nhttp_access allow good\nhttp_access deny all\n")
    found = converted("squid", source, "--strict", "--namespace", "agents")
    assert (found.exit_code, found.stderr) == (0, "")
    made.write_text(found.stdout)
    checked = CliRunner().invoke(main, ["check", "--strict", str(made)])
    assert "2 objects, 0 warnings." in checked.output
    assert "EgressPolicy\nmetadata: {name: default, namespace: agents}" in found.stdout


def test_what_was_left_out_is_told_and_is_1_with_strict(tmp_path: Path):
    source = tmp_path / "acl.yaml"
    source.write_text("version: v1\nservices: [{name: a, action: enforce, mitm_domains: [{domain: a.example}]}]\n")
    assert converted("smokescreen", source).exit_code == 0
    found = converted("smokescreen", source, "--strict")
    assert found.exit_code == 1
    assert f"not carried over: {source}:2 a: mitm_domains: " in found.stderr


def test_a_directive_that_is_no_rule_is_not_strict(tmp_path: Path):
    source = tmp_path / "squid.conf"
    source.write_text("cache_mem 64 MB\n")
    found = converted("squid", source, "--strict")
    assert (found.exit_code, "squid.conf:1 cache_mem: " in found.stderr) == (0, True)


def test_a_source_that_cannot_be_read_is_1(tmp_path: Path):
    source = tmp_path / "squid.conf"
    source.write_text("acl a any-of a\nhttp_access allow a\n")
    assert converted("squid", source).exit_code == 1
    assert "refers to itself" in converted("squid", source).stderr
    source.write_text("http_access allow nobody\n")
    assert "there is no acl nobody" in converted("squid", source).stderr


def test_a_namespace_that_is_no_name_is_2(tmp_path: Path):
    source = tmp_path / "squid.conf"
    source.write_text("")
    assert converted("squid", source, "--namespace", "a: b").exit_code == 2
