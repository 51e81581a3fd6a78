"""The worked examples of docs/migrate/ are what the converters print."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from egressproxy.operators.convert.manifests import Converted
from egressproxy.operators.convert.smokescreen import convert_smokescreen
from egressproxy.operators.convert.squid import convert_squid

PAGES = Path(__file__).resolve().parents[3] / "docs" / "migrate"
EXAMPLES = {"squid": ("squid.conf", convert_squid), "smokescreen": ("acl.yaml", convert_smokescreen)}


@pytest.mark.parametrize("page", EXAMPLES)
def test_the_example_of_the_page_is_printed(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name: str
    convert: Callable[[Path], Converted]
    name, convert = EXAMPLES[page]
    source, expected = re.findall(r"^```(?:text|yaml)\n(.*?)^```$", (PAGES / f"{page}.md").read_text(), re.M | re.S)[:2]
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(source)
    assert convert(Path(name)).written("egress") == expected
