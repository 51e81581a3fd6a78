"""`.ci/docs`, which builds the site: the parts that need no Zensical."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site() -> ModuleType:
    loader = SourceFileLoader("site_of_docs", str(ROOT / ".ci" / "docs"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def staged(site: ModuleType, **pages: str):
    stage = site.Stage()
    stage.staged = {f"{name.replace('__', '/')}.md": text for name, text in pages.items()}
    return stage


def test_what_belongs_to_an_item_is_indented_by_four_spaces(site: ModuleType):
    text = (
        "Words:\n* one\n  goes on\n\n  a paragraph\n* two\n  * inside\n\n  ```yaml\n  a:\n    b: c\n  ```\n\nBehind.\n"
    )
    assert site.indented(text) == (
        "Words:\n\n* one\n    goes on\n\n    a paragraph\n\n* two\n    * inside\n\n"
        "    ```yaml\n    a:\n      b: c\n    ```\n\nBehind.\n"
    )
    code = "Words:\n\n    indented: code\n      below: it\n\n```\n* no list\n  here\n```\n"
    assert site.indented(code) == code


def test_the_headings_and_bullets_of_the_index_are_the_navigation(site: ModuleType):
    index = (
        "# Title\n\n## Tutorials\n\n* [First](a.md)\n\n## How-to guides\n\n* **one thing**: [b](b.md#part), [c](c.md)\n"
        "  and [d](d.md)\n\n## Reference\n\n* [b](b.md), [gone](gone.md)\n\n## Explanations\n\n## More\n\n* [e](e.md)\n"
    )
    stage = staged(site, index=index, a="# A\n", b="# `B`\n", c="# C\n", d="# D\n", filters__x="# X\n")
    assert site.navigation(stage) == [
        {"Home": "index.md"},
        {"Tutorials": [{"A": "a.md"}]},
        {"How-to guides": [{"One thing": [{"C": "c.md"}, {"D": "d.md"}]}]},
        {"Reference": [{"B": "b.md"}, {"More filters": [{"X": "filters/x.md"}]}]},
        {"Explanations": []},
    ]


def test_links_follow_their_pages_and_files_of_the_checkout_become_pages(site: ModuleType):
    text = "[a](../config/demo.yaml) [b](filters/cache.md#x) `[c](d.md)` [e](https://a.example) [f](../SECURITY.md)\n"
    stage = site.Stage()
    assert stage.linked(text, Path("docs/index.md"), "index.md") == (
        "[a](files/config/demo.yaml.md) [b](filters/cache.md#x) `[c](d.md)` [e](https://a.example) [f](SECURITY.md)\n"
    )
    assert stage.linked("[up](../reload.md)", Path("docs/filters/cache.md"), "filters/cache.md") == "[up](../reload.md)"
    assert stage.problems == []
    stage.linked("[gone](no-such-page.md)", Path("docs/index.md"), "index.md")
    assert stage.problems == ["docs/index.md: no-such-page.md leads nowhere"]


def test_a_page_is_described_by_its_first_sentence(site: ModuleType):
    assert (
        site.first_sentence("# T\n\n    $ code\n\nA [link](b.md) of v1.2\nand `x`. More.\n")
        == "A link of v1.2 and `x`."
    )
    assert site.first_sentence("# T\n\nThree ways:\n\n* one\n") == "Three ways"
    assert site.first_sentence("# T\n\n| a | b |\n") == ""


def test_assets_of_other_hosts_and_dead_links_are_problems(site: ModuleType, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(site, "SITE", tmp_path)
    (tmp_path / "a.html").write_text(
        '<script src="https://cdn.example/x.js"></script><img src="//b.example/p.png"><a href="https://ok.example/"></a>'
        '<p id="here"></p><a href="a.html#here"></a><a href="a.html#gone"></a><a href="b.html"></a>'
    )
    (tmp_path / "s.css").write_text("@import 'https://fonts.example/f'; a {background: url(local.png)}")
    assert site.problems_of_site() == [
        "a.html: a.html#gone leads nowhere",
        "a.html: b.html leads nowhere",
        "a.html: loads //b.example/p.png",
        "a.html: loads https://cdn.example/x.js",
        "s.css: loads https://fonts.example/f",
    ]
