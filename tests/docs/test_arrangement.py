"""docs/index.md names every page, below one of the headings that become the tabs of the site (`.ci/docs`)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DOORS = ("Tutorials", "How-to guides", "Reference", "Explanations")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
_CODE = re.compile(r"^( *)```.*?^\1```$|(?:^    .*\n)+", re.MULTILINE | re.DOTALL)


def test_every_page_stands_below_a_heading_of_the_index():
    """Pages of built-in filters may be left out: the site lists them with the reference."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", index, re.MULTILINE | re.DOTALL))
    named = {target for door in DOORS for target in re.findall(r"\]\(([\w./-]+\.md)", sections[door])}
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"index.md"}
    missing = {page for page in pages - named if not page.startswith("filters/")}
    assert missing == set(), f"link to these pages in docs/index.md, below one of {', '.join(DOORS)}"


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as a forge and the site make them."""
    text = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each) for each in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", each.strip().lower()).replace(" ", "-") for each in headings}


ANCHORS = {page: slugs(page) for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_anchor_of_a_link_is_a_heading(page: Path):
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    for target, anchor in re.findall(r"\]\(((?!https?:)[^)#\s]*)#([^)\s]+)\)", text):
        aim = (page.parent / target).resolve() if target else page
        assert aim not in ANCHORS or anchor in ANCHORS[aim], f"{target}#{anchor}"
