import json
from xml.etree import ElementTree

from rich.console import Console

from benchmarks import report
from benchmarks.goals import judge_all
from tests.benchmarks.kit import results


def test_the_files_of_a_run_agree(tmp_path):
    path = report.write(tmp_path, results(), {"envoy": "1.40.0"}, {"rounds": 2})
    document = json.loads(path.with_suffix(".json").read_text())
    text = path.read_text()
    first, envoy, _, squid = document["workloads"]["W1"]
    assert (first["value"], envoy["our_ratio"]["median"]) == (22.0, 0.55)
    assert squid["missing"] == "no answer | at\nall"
    assert "| envoy | 40.0 | 40.0-40.0 | 0.55 (0.50-0.60) | 1,500 | 400 | 900 | 64 |  |" in text
    assert f"]({path.with_suffix('.svg').name})" in text
    assert "| W1 | ≤ 0.70 × envoy | 0.55 (0.50 to 0.60) | met |" in text
    ElementTree.parse(path.with_suffix(".svg"))


def test_every_line_of_a_markdown_table_has_as_many_cells(tmp_path):
    lines = report.write(tmp_path, results(), {}, {}).read_text().splitlines()
    tables = "\n".join(lines).split("\n\n")
    for table in (block.splitlines() for block in tables if block.startswith("|")):
        assert len({line.count("|") for line in table}) == 1, table


def test_the_terminal_shows_every_proxy_and_goal():
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(report.table("W1", results()["W1"]))
    console.print(report.goals_table(judge_all(results())))
    said = console.export_text()
    assert all(word in said for word in ("egressproxy", "mitmproxy", "no limits", "no answer", "≤ 0.75 × envoy"))
