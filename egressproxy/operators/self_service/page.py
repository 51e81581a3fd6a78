"""The page that a person sees at egress.internal: no script, nothing from elsewhere, every value escaped."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape
from typing import Any, Final

_STYLE: Final = (
    ":root{color-scheme:light dark;--text:#1c2024;--dim:#60646c;--line:#d9d9e0;--card:#fff;--back:#f6f6f8;"
    "--accent:#0b68cb;--good:#116329;--bad:#b42318;--wait:#8a5300}"
    "@media(prefers-color-scheme:dark){:root{--text:#edeef0;--dim:#b0b4ba;--line:#393a40;--card:#1c1d21;"
    "--back:#111113;--accent:#70b8ff;--good:#7ee2a8;--bad:#ff9592;--wait:#ffca61}}"
    "*{box-sizing:border-box}body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:0 auto;"
    "padding:1.5rem 1rem 3rem;color:var(--text);background:var(--back);overflow-wrap:anywhere}"
    "h1{font-size:1.6rem;line-height:1.2;margin:.5rem 0}h2{font-size:1rem;margin:0 0 .5rem}"
    "section{background:var(--card);border:1px solid var(--line);border-radius:.75rem;padding:1rem 1.25rem;"
    "margin:1rem 0}p{margin:.5rem 0}.dim,footer,th{color:var(--dim)}footer{font-size:.9rem}"
    "code{font:.9em/1.5 ui-monospace,SFMono-Regular,Menlo,monospace}a{color:var(--accent)}"
    "ul{list-style:none;margin:0;padding:0}li{padding:.3rem 0}li+li{border-top:1px solid var(--line)}"
    "form{display:flex;flex-wrap:wrap;gap:.5rem}label{flex:1 1 100%}"
    "input,button{font:inherit;padding:.55rem .75rem;border-radius:.5rem;border:1px solid var(--line);"
    "min-height:2.75rem}input{flex:1 1 14rem;min-width:0;color:inherit;background:var(--back)}"
    "button{color:#fff;background:#0b68cb;border-color:#0b68cb;cursor:pointer}"
    ":focus-visible{outline:3px solid var(--accent);outline-offset:2px}"
    ".good{color:var(--good)}.bad{color:var(--bad)}.wait{color:var(--wait)}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.4rem .75rem .4rem 0;"
    "vertical-align:top;border-top:1px solid var(--line)}tr:first-child>*{border-top:0}th{font-weight:400}"
    "@media(max-width:36rem){thead{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}"
    "tr{display:block;padding:.5rem 0;border-top:1px solid var(--line)}tbody tr:first-child{border-top:0}"
    "td{display:grid;grid-template-columns:7rem 1fr;border:0;padding:.15rem 0}"
    "td::before{content:attr(data-of);color:var(--dim)}}"
)
#: Content-Security-Policy: this style alone, and forms that send to ourselves (CSP Level 3).
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
).encode()


def page(access: Mapping[str, Any], checked: Mapping[str, Any] | None = None) -> bytes:
    """HTML of what `access_of` gives; with what a check has found, if one was asked for."""
    listener = access["listener"]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>What may I reach?</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main><h1>What may I reach?</h1>",
        f"<p>{escape(access['summary'])}</p>"
        f'<p class="dim">Listener <code>{escape(listener["gateway"])}/{escape(listener["name"])}</code>,'
        f" {escape(listener['kind'])}, mode {escape(listener['mode'])}.</p>",
        _section("May I go there?", _form(checked)),
    ]
    if access["waiting"]:
        parts.append(_section("Waiting for approval", _waiting(access["waiting"])))
    for number, group in enumerate(access["allow"]):
        parts.append(
            _section("Allowed — with one entry of this list, too" if number else "Allowed", _list(_entries(group)))
        )
    if access["hostnames"]:
        parts.append(_section("Allowed by routes", _list(access["hostnames"])))
    if access["deny"]:
        parts.append(_section("Denied, whatever allows it", _list(_entries(access["deny"]))))
    parts.append(_section("Limits", _limits(access["limits"])))
    if not access["isComplete"]:
        parts.append("<p>The lists are longer than is shown.</p>")
    parts.append(
        '</main><footer><p>The same as <a href="/access">JSON</a>, and as an MCP server at '
        "<code>http://egress.internal/mcp</code>. Addresses behind a name are judged only when it is asked for.</p>"
        "</footer></body></html>"
    )
    return "".join(parts).encode()


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _form(checked: Mapping[str, Any] | None) -> str:
    url = escape(checked["url"]) if checked is not None else ""
    form = (
        '<form action="/" method="get"><label for="url" class="dim">Type a URL. Nothing is sent there.</label>'
        f'<input id="url" name="url" type="url" inputmode="url" required value="{url}" '
        'placeholder="https://api.example.com/"><button>Ask</button></form>'
    )
    if checked is None:
        return form
    allowed = "waits for approval" if "waits" in checked else "allowed"
    verdict = allowed if checked["allowed"] else f"denied ({checked['reason']})"
    remedy = f"What helps: {checked['remedy']}." if checked.get("remedy") else ""
    message = f"{checked['message']}." if checked.get("message") else ""
    text = " ".join(filter(None, (message, remedy, checked.get("waits", ""))))
    kind = "wait" if "waits" in checked else "good" if checked["allowed"] else "bad"
    note = f" — {escape(text)}" if text else ""
    return (
        f'{form}<p id="verdict" role="status"><code>{url}</code>: <strong class="{kind}">{escape(verdict)}</strong>'
        f"{note}</p>"
    )


def _waiting(holds: Iterable[Mapping[str, Any]]) -> str:
    rows = []
    for hold in holds:
        asked = f"{hold['method']} {hold['authority']}{hold['path']}{' tool ' + hold['tool'] if hold['tool'] else ''}"
        rows.append((asked, hold["id"], _duration(hold["waitsSeconds"]), _duration(hold["leftSeconds"])))
    return _table(("request", "id", "waits for", "denied in"), rows) + (
        '<p class="dim">Somebody who runs this gateway decides: tell them the id.</p>'
    )


def _limits(limits: Iterable[Mapping[str, Any]]) -> str:
    rows = []
    for each in limits:
        reset = _duration(each["resetSeconds"]) if each["resetSeconds"] else "—"
        rows.append((each["name"], each["allows"], f"{each['left']:,} of {each['limit']:,}", reset))
    return _table(("limit", "allows", "left", "all again in"), rows) if rows else "<p>no limit</p>"


def _duration(seconds: float) -> str:
    """`90 s`, `12 min`, `3 h`, `2 days`: as far as people count."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """On a narrow screen each cell says what it is."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = ""
    for row in rows:
        cells = zip(map(escape, names), map(escape, row), strict=True)
        cells_html = "".join(f'<td data-of="{name}"><span>{cell}</span></td>' for name, cell in cells)
        body += f"<tr>{cells_html}</tr>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _entries(group: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for entry in group:
        ports = ", ".join(map(str, entry.get("ports", ())))
        for host in (*entry.get("hostnames", ()), *entry.get("cidrs", ())) or ("every host",):
            yield f"{host}, port {ports}" if ports else host


def _list(entries: Iterable[str]) -> str:
    items = "".join(f"<li><code>{escape(each)}</code></li>" for each in entries)
    return f"<ul>{items}</ul>" if items else "<p>nothing</p>"
