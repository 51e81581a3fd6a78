"""docs/access-log.md names each key that filters and backends add to the line of an exchange."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_key_that_is_added_is_on_the_page():
    page = (ROOT / "docs" / "access-log.md").read_text(encoding="utf-8")
    added: set[str] = set()
    for path in (ROOT / "egressproxy").rglob("*.py"):
        for call in re.findall(r"add_log_fields\(\s*\{(.*?)\}", path.read_text(encoding="utf-8"), re.DOTALL):
            added |= set(re.findall(r"\"(\w+)\":", call))
    assert {"cache", "canary", "websocket", "insecure", "dns_code"} <= added
    assert [key for key in sorted(added) if f"`{key}`" not in page] == []
