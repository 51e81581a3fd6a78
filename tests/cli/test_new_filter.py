"""`egressproxy filters new`: what it writes works as it is, and overwrites nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from egressproxy.cli.main import main


def new(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["filters", "new", *map(str, words)])
    return result.exit_code, result.output


@pytest.mark.parametrize("body", ["none", "buffer", "stream"])
def test_the_files_pass_their_test_and_the_check(body: str, tmp_path: Path):
    status, said = new("the-filter", "--body", body, "--dir", tmp_path / "f")
    assert status == 0
    assert sorted(path.name for path in (tmp_path / "f").iterdir()) == [
        "test_the_filter.py", "the-filter.yaml", "the_filter.py",
    ]  # fmt: skip
    assert f"egressproxy check {tmp_path / 'f'}" in said
    done = CliRunner().invoke(main, ["check", "--strict", str(tmp_path / "f")])
    assert done.exit_code == 0, done.output
    test = tmp_path / "f" / "test_the_filter.py"
    names: dict[str, object] = {"__file__": str(test)}
    exec(compile(test.read_text(), str(test), "exec"), names)
    tests = [made for name, made in names.items() if name.startswith("test_")]
    assert tests
    for each in tests:
        assert callable(each)
        each()


def test_a_second_filter_is_for_the_gateway_of_its_folder(tmp_path: Path):
    assert new("first", "--dir", tmp_path)[0] == 0
    status, said = new("second", "--body", "buffer", "--dir", tmp_path)
    assert (status, "curl" in said) == (0, False)
    text = (tmp_path / "second.yaml").read_text()
    assert "kind: Gateway\n" not in text
    assert "destinations" not in text
    done = CliRunner().invoke(main, ["check", "--strict", str(tmp_path)])
    assert done.exit_code == 0, done.output


def test_no_file_is_overwritten_and_none_is_written_beside_one(tmp_path: Path):
    (tmp_path / "test_mine.py").write_text("mine")
    status, said = new("mine", "--dir", tmp_path)
    assert status == 1
    assert f"{tmp_path / 'test_mine.py'} is there already" in said
    assert [path.name for path in tmp_path.iterdir()] == ["test_mine.py"]


@pytest.mark.parametrize(
    ("name", "why"),
    [("../x", "write lower-case letters"), ("Mine", "write lower-case"), ("json", "Python has a module json")],
    ids=["path", "case", "module"],
)
def test_a_name_that_does_not_do_is_refused(name: str, why: str, tmp_path: Path):
    status, said = new(name, "--dir", tmp_path)
    assert (status, [*tmp_path.iterdir()]) == (2, [])
    assert why in said
