"""The page that a person sees at egress.internal: no script, nothing from elsewhere, every value escaped."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from html import escape
from typing import Any, Final

__all__ = ["POLICY", "page"]

_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;"
    "background:#fff}h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse}"
    "td,th{text-align:left;padding:.2rem 1rem .2rem 0;vertical-align:top}code{font-size:.95em}"
    "@media(prefers-color-scheme:dark){body{color:#eee;background:#111}}"
)
#: Content-Security-Policy: this style alone, and forms that send to ourselves (CSP Level 3).
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
).encode()


def page(access: Mapping[str, Any], checked: Mapping[str, Any] | None = None) -> bytes:
    """HTML of what `access_of` gives; with what a check has found, if one was asked for."""
    who, listener = access["identity"], access["listener"]
    name = who["name"] if who["name"] != "-" else "a client that is not known"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>What may I reach?</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>What may I reach?</h1>",
        f"<p>You are <code>{escape(name)}</code>, known by {escape(_known_by(who['source']))}, on listener "
        f"<code>{escape(listener['gateway'])}/{escape(listener['name'])}</code>"
        f" ({escape(listener['kind'])}, mode {escape(listener['mode'])}).</p>",
        '<h2>May I go there?</h2><form action="/" method="get"><label>URL <input name="url" size="50" '
        'placeholder="https://api.example.com/"></label> <button>Ask</button></form>',
    ]
    if checked is not None:
        verdict = "allowed" if checked["allowed"] else f"denied ({checked['reason']})"
        said = " ".join(filter(None, (checked.get("message", ""), checked.get("remedy", ""))))
        url = escape(checked["url"])
        parts.append(f'<p id="verdict"><code>{url}</code>: <strong>{escape(verdict)}</strong> {escape(said)}</p>')
    for number, group in enumerate(access["allow"]):
        also = " — and one of these, too" if number else ""
        parts.append(f"<h2>Allowed{also}</h2>{_list(map(_entry, group))}")
    if access["hostnames"]:
        parts.append(f"<h2>Allowed by routes</h2>{_list(access['hostnames'])}")
    if access["deny"]:
        parts.append(f"<h2>Denied, whatever allows it</h2>{_list(map(_entry, access['deny']))}")
    parts.append(f"<h2>Limits</h2>{_table(access['limits'])}")
    if not access["isComplete"]:
        parts.append("<p>The lists are longer than is shown.</p>")
    parts.append(
        '<p>The same as <a href="/access">JSON</a>, and as an MCP server at <code>http://egress.internal/mcp</code>.'
        " Addresses behind a name are judged only when it is asked for.</p></body></html>"
    )
    return "".join(parts).encode()


def _known_by(source: str) -> str:
    return "nothing" if source == "-" else f"its {source}"


def _entry(entry: Mapping[str, Any]) -> str:
    hosts = ", ".join((*entry.get("hostnames", ()), *entry.get("cidrs", ()))) or "every host"
    ports = ", ".join(map(str, entry.get("ports", ())))
    return f"{hosts}, port {ports}" if ports else hosts


def _list(entries: Iterable[str]) -> str:
    items = "".join(f"<li><code>{escape(each)}</code></li>" for each in entries)
    return f"<ul>{items}</ul>" if items else "<p>nothing</p>"


def _table(limits: Iterable[Mapping[str, Any]]) -> str:
    rows = "".join(
        f"<tr><td>{escape(each['name'])}</td><td>{escape(each['allows'])}</td><td>{each['left']:g} of "
        f"{each['limit']:g}</td><td>{each['resetSeconds']:g} s</td></tr>"
        for each in limits
    )
    head = "<tr><th>limit</th><th>allows</th><th>left</th><th>all of it again in</th></tr>"
    return f"<table>{head}{rows}</table>" if rows else "<p>no limit</p>"
