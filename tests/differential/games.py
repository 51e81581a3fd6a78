"""What the two builds are given to play: made of a number, so that the same number gives the same games everywhere."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

Game = dict[str, Any]

METHODS = ("GET", "POST", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "P@TCH", "M" * 33, "")
TARGETS = (
    "/", "/a?b=c", "http://a.example/x", "https://a.example:8443/", "HTTP://A.example", "a.example:443", "*", "/\xff",
    "ftp://a.example/", "http://u@a.example/", "/a#b", "http://[::1]:80/", "/" + "x" * 200, "", "a.example", "//a",
)  # fmt: skip
VERSIONS = ("HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "http/1.1", "HTTP/1.1 ", "")
NAMES = (
    "Host", "host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "TE", "Via", "Expect", "Trailer",
    "Proxy-Authorization", "Proxy-Connection", "Keep-Alive", "Max-Forwards", "X-A", "x_a", "X-Egress-Identity", "Date",
    "WWW-Authenticate", "Cookie", "Content-Type", "", "X A", "X-\xe4",
)  # fmt: skip
VALUES = (
    "a.example", "a.example:80", "b.example", "0", "5", "05", "+5", "9007199254740993", "5, 5", "chunked", "Chunked",
    "gzip, chunked", "close", "keep-alive", "upgrade", "Upgrade, X-A", "websocket", "trailers", "1.1 other",
    "100-continue", "Basic YTpi", "NTLM abc", "", " padded\t", "a\x00b", "\xff", "x" * 300,
)  # fmt: skip
ENDS = ("\r\n",) * 30 + ("\n", "\r", "\r\n ", "\r\r\n")
STATUSES = (
    "200 OK",
    "204 No Content",
    "304 Not Modified",
    "100 Continue",
    "101 Switching",
    "404",
    "999 X",
    "20 OK",
    "2000 OK",
)
SIZES = (
    "0",
    "1",
    "5",
    "a",
    "A",
    "05",
    "ffffffffffffffffff",
    "-1",
    "0x5",
    "",
    "5 ",
    "5;a=b",
    '5;a="b\r"',
    "5;" + "x" * 300,
)
LIMITS = ([65536, 128, 8192], [65536, 128, 8192], [200, 4, 60], [60, 1, 16])
PATHS = (
    "/",
    "/a",
    "/a/",
    "/a/b",
    "/a/b/c",
    "/%61",
    "/a%2Fb",
    "/Get",
    "/S/Get",
    "/a/../b",
    "/a/%2e%2e",
    "//a",
    "/a?x=1&y=2",
    "/b?x=%31",
    "*",
)
HOSTS = ("a.test", "b.a.test", "c.b.a.test", "own.test", "x.own.test", "other.test", "", "test")
ASKED_FIELDS = ("X", "x", "Y", "X-A", "Origin", "Access-Control-Request-Method")
PATTERNS = ("a.test", "*.a.test", "*.b.a.test", "*.test", "*", "", "own.test")
RANGES = (
    "169.254.169.254/32", "169.254.0.0/16", "127.0.0.0/8", "10.0.0.0/8", "10.0.0.1/32", "93.184.216.0/24", "0.0.0.0/0",
    "::/0", "::ffff:0:0/96", "64:ff9b::/96", "fd00::/8", "fd00:ec2::254/128", "2002::/16", "2606:2800::/32", "::1/128",
)  # fmt: skip
ADDRESSES = (
    "169.254.169.254", "169.254.169.253", "127.0.0.1", "10.0.0.1", "10.1.2.3", "93.184.216.34", "0.0.0.0", "224.0.0.1",
    "100.64.0.1", "::1", "::", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "fd00:ec2::254",
    "fd00::5efe:a00:1", "2606:2800:220:1::1", "fe80::1", "::ffff:10.0.0.1", "4000::1",
)  # fmt: skip
PORTS = (80, 443, 8080, 9000)


#: Whole exchanges take some milliseconds each.
EXCHANGES = 150


def games(seed: int, many: int) -> list[Game]:
    """So many games of each kind."""
    chance = random.Random(seed)
    return [
        {"play": name, **make(chance)}
        for name, make in MAKERS.items()
        for _ in range(many if name != "exchanges" else min(many, EXCHANGES))
    ]


# --- HTTP/1 --------------------------------------------------------------------------------------------------------
def _section(chance: random.Random, most: int = 6) -> str:
    lines = []
    for _ in range(chance.randrange(most)):
        lines.append(f"{chance.choice(NAMES)}:{chance.choice(('', ' '))}{chance.choice(VALUES)}{chance.choice(ENDS)}")
    return "".join(lines)


def _chunked(chance: random.Random) -> str:
    text = ""
    for _ in range(chance.randrange(5)):
        size = chance.choice(SIZES[1:5]) if chance.random() < 0.9 else chance.choice(SIZES)
        try:
            data = "d" * min(int(size, 16), 20)
        except ValueError:
            data = "dddd\r"
        text += f"{size}{chance.choice(('', '', ';e=1'))}{chance.choice(ENDS)}{data}{chance.choice(ENDS)}"
    return text + chance.choice(("0\r\n\r\n", "0\r\n\r\n", f"0\r\n{_section(chance, 4)}\r\n", "", "00\r\n\r\n"))


def _message(chance: random.Random, start: str) -> str:
    """A head, mostly with framing that fits, and what may be its body."""
    body, framing = "", ""
    match chance.randrange(5):
        case 0:
            body = "b" * chance.choice((0, 1, 5, 300))
            framing = f"Content-Length: {len(body)}\r\n"
        case 1:
            body, framing = _chunked(chance), "Transfer-Encoding: chunked\r\n"
        case 2:
            body = "\r\n" * chance.randrange(7)
    host = "Host: a.example\r\n" if chance.random() < 0.8 else ""
    return f"{start}{chance.choice(ENDS)}{host}{framing}{_section(chance)}\r\n{body}"


def _harmed(chance: random.Random, text: str) -> str:
    """The text with some of its characters gone, doubled or others."""
    if chance.random() < 0.6:
        return text
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(text) + 1)
        put = chance.choice(
            ("", chr(chance.randrange(256)), "\r", "\n", "\r\n\r\n", ":", " ", "\x00", text[at : at + 9])
        )
        text = text[:at] + put + text[at + chance.randrange(3) :]
    return text


def _cut(chance: random.Random, text: str) -> Game:
    way = chance.randrange(4)
    cuts = list(range(len(text))) if way == 0 and len(text) < 400 else []
    if way in (1, 2):
        cuts = sorted(chance.randrange(len(text) + 1) for _ in range(chance.randrange(5)))
    return {"data": text, "cuts": cuts, "limits": chance.choice(LIMITS), "whole": chance.random() < 0.3}


def _of_requests(chance: random.Random) -> Game:
    text = chance.choice(("", "", "", "\r\n", "\r\n" * 6))
    for _ in range(chance.randrange(1, 4)):
        usual = chance.random() < 0.6
        method = chance.choice(METHODS[:3] if usual else METHODS)
        target, version = (
            chance.choice(TARGETS[:3] if usual else TARGETS),
            chance.choice(VERSIONS[:4] if usual else VERSIONS),
        )
        text += _message(chance, f"{method} {target} {version}")
    return _cut(chance, _harmed(chance, text))


def _of_responses(chance: random.Random) -> Game:
    text = ""
    for _ in range(chance.choice((1, 1, 1, 2, 18))):
        status = chance.choice(STATUSES[:4]) if chance.random() < 0.7 else chance.choice(STATUSES)
        text += _message(chance, f"{chance.choice(VERSIONS[:5])} {status}")
    more = {"method": chance.choice(("GET", "GET", "HEAD", "CONNECT", "POST")), "eof": chance.randrange(3)}
    return {**_cut(chance, _harmed(chance, text)), **more}


def _of_chunks(chance: random.Random) -> Game:
    named = [chance.choice(("x-a", "cookie"))] if chance.random() < 0.3 else []
    return {**_cut(chance, _harmed(chance, _chunked(chance))), "named": named, "at": chance.randrange(4)}


def _of_fields(chance: random.Random) -> Game:
    does: list[list[str]] = []
    for _ in range(chance.randrange(1, 8)):
        name = chance.choice(NAMES).lower()
        match chance.choice(("get", "get_all", "__contains__", "remove", "add", "set")):
            case ("add" | "set") as what:
                does.append([what, chance.choice(NAMES), chance.choice(VALUES)])
            case what:
                does.append([what, name])
    section = _section(chance)
    return {"block": "".join(f"\r\n{line}" for line in section.split("\r\n") if ":" in line), "does": does}


# --- HTTP/2 --------------------------------------------------------------------------------------------------------
def _frame(kind: int, flags: int, number: int, payload: str) -> str:
    return "".join(map(chr, (*len(payload).to_bytes(3, "big"), kind, flags, *number.to_bytes(4, "big")))) + payload


def _field_block(chance: random.Random) -> str:
    """Indexed fields, literals with and without a place in the table, with Huffman's code, and changes of the table."""
    block = chance.choice(("\x82\x84\x86\x41\x09a.example", "\x83\x87\x85\x01\x81\x1f", "\x20", "\x3f\xe1\x1f"))
    for _ in range(chance.randrange(6)):
        name, value = chance.choice(NAMES).lower(), chance.choice(VALUES)
        start = chance.choice(("\x00", "\x10", "\x40"))
        match chance.randrange(4):
            case 0:
                block += chr(0x80 | (chance.randrange(1, 62) if chance.random() < 0.95 else chance.randrange(128)))
            case 1:
                block += start + "\x85\xf2\xb2\x4a\x84\xff" + chr(len(value) % 127) + value[:126]
            case _:
                block += start + chr(len(name)) + name + chr(min(len(value), 126)) + value[:126]
    return block


def _of_frames(chance: random.Random) -> Game:
    text = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, chance.choice(("", "\0\4\0\0\0\x09")))
    for number in range(1, 2 * chance.randrange(1, 8), 2):
        payload, flags = _field_block(chance), chance.choice((4, 5, 5, 5, 0, 0x2D))
        match chance.randrange(5):
            case 0:
                kind = chance.choice((0, 2, 3, 4, 6, 7, 8, 9, 99))
                size = chance.choice((0, 4, 5, 6, 8))
                payload = "".join(chr(chance.choice((0, 0, 1, 4, 255))) for _ in range(size))
                text += _frame(kind, chance.randrange(2), chance.choice((0, number, 1)), payload)
            case 1:
                text += _frame(1, flags & 1, number, payload[:3]) + _frame(9, 4, number, payload[3:])
            case 2:
                text += _frame(1, 0x2D, number, "\2\0\0\0\0\x10" + payload + "\0\0")
            case _:
                text += _frame(1, flags, number, payload)
    return _cut(chance, _harmed(chance, text) if chance.random() < 0.3 else text)


# --- routing -------------------------------------------------------------------------------------------------------
def _some(chance: random.Random, among: Sequence[str], most: int) -> list[str]:
    return [chance.choice(among) for _ in range(chance.randrange(most + 1))]


def _value(chance: random.Random) -> list[str]:
    regex = chance.random() < 0.3
    value = chance.choice(("[0-9]+", ".*") if regex else ("1", "2"))
    return [chance.choice(("x", "y", "x-a")), value, "RegularExpression" if regex else "Exact"]


def _rule(chance: random.Random) -> Game:
    kind = chance.choice(("PathPrefix", "PathPrefix", "Exact", "RegularExpression"))
    path = (
        chance.choice(("/a/.*", "/[a-z]+", "/(a|b)/b", "("))
        if kind == "RegularExpression"
        else chance.choice(PATHS[:9])
    )
    return {
        "path": path, "type": kind, "method": chance.choice(("", "", "GET", "POST")),
        "headers": [_value(chance) for _ in range(chance.choice((0, 0, 1, 2)))],
        "query": [_value(chance) for _ in range(chance.choice((0, 0, 0, 1)))],
        "preflight": chance.random() < 0.1, "any_service": chance.random() < 0.1,
    }  # fmt: skip


def _of_routes(chance: random.Random) -> Game:
    routes = [
        [
            _some(chance, PATTERNS[:4], 2),
            chance.choice(("~", "2026-01-01")),
            [_rule(chance) for _ in range(chance.randrange(1, 4))],
        ]
        for _ in range(chance.randrange(1, 6))
    ]
    asks = [
        [
            chance.choice(HOSTS), chance.choice(("GET", "POST", "OPTIONS")), chance.choice(PATHS),
            [[chance.choice(ASKED_FIELDS), chance.choice(("1", "2", "GET"))] for _ in range(chance.randrange(4))],
        ]
        for _ in range(8)
    ]  # fmt: skip
    return {"routes": routes, "asks": asks}


def _of_hosts(chance: random.Random) -> Game:
    return {"entries": [_some(chance, PATTERNS, 3) for _ in range(chance.randrange(8))], "asks": list(HOSTS)}


# --- what may be reached -------------------------------------------------------------------------------------------
def _allowance(chance: random.Random) -> Game:
    return {"cidrs": _some(chance, RANGES, 3), "hostnames": _some(chance, PATTERNS[:4], 2)}


def _of_addresses(chance: random.Random) -> Game:
    groups = [[_allowance(chance) for _ in range(chance.randrange(3))] for _ in range(chance.randrange(3))]
    denials = [[_some(chance, RANGES, 3), _ports(chance), chance.random() < 0.3] for _ in range(chance.randrange(3))]
    only = [_some(chance, RANGES, 4) for _ in range(chance.randrange(2))]
    asks = [[chance.choice(HOSTS), _some(chance, ADDRESSES, 4), chance.choice(PORTS)] for _ in range(12)]
    return {"allow": groups, "deny": denials, "only": only, "asks": asks + asks[:2]}


def _ports(chance: random.Random) -> list[int]:
    return [chance.choice(PORTS) for _ in range(chance.choice((0, 0, 1, 2)))]


def _entry(chance: random.Random) -> Game:
    return {**_allowance(chance), "ports": _ports(chance), "any": chance.random() < 0.3, "firm": chance.random() < 0.2}


def _of_destinations(chance: random.Random) -> Game:
    allow = [[_entry(chance) for _ in range(chance.randrange(4))] for _ in range(chance.randrange(3))]
    deny = [_entry(chance) for _ in range(chance.randrange(3))]
    hosts = [host for host in HOSTS if host] + [f"[{each}]" if ":" in each else each for each in ADDRESSES]
    asks = [f"{chance.choice(hosts)}:{chance.choice(PORTS)}" for _ in range(12)]
    return {"allow": allow, "deny": deny, "firm": chance.randrange(len(allow) + 1), "asks": asks + asks[:2]}


# --- the pool ------------------------------------------------------------------------------------------------------
def _of_pool(chance: random.Random) -> Game:
    limit = chance.randrange(1, 5)
    settings = [limit, chance.randrange(3), chance.randrange(4), chance.randrange(1, limit + 1)]
    what = ("ask", "ask", "ask", "ask", "release", "release", "lost", "leave", "too_late", "go")
    does = [[chance.choice(what), chance.randrange(4), chance.randrange(4)] for _ in range(chance.randrange(30))]
    return {"settings": settings, "does": does + ([["retire", 0, 0]] if chance.random() < 0.2 else [])}


# --- ClientHellos and lines of the log ------------------------------------------------------------------------------
def _sized(data: str, length_bytes: int) -> str:
    return (len(data) % 256**length_bytes).to_bytes(length_bytes, "big").decode("latin-1") + data


def _extension(chance: random.Random) -> str:
    match chance.randrange(6):
        case 0 | 1:
            names = "".join("\0" + _sized(chance.choice(HOSTS), 2) for _ in range(chance.choice((0, 1, 1, 1, 2))))
            return "\0\0" + _sized(_sized(names, 2), 2)
        case 2:
            names = "".join(_sized(name, 1) for name in chance.sample(("h2", "http/1.1", "", "x"), chance.randrange(4)))
            return "\0\x10" + _sized(_sized(names, 2), 2)
        case 3:
            return "\0\x2b" + _sized(_sized("".join(chance.choices(("\3\4", "\3\3", "\3"), k=2)), 1), 2)
        case 4:
            return "\xfe\x0d" + _sized("x" * chance.randrange(9), 2)
    return "\0\x15" + _sized("\0" * chance.choice((0, 5, 300)), 2)


def _of_hellos(chance: random.Random) -> Game:
    extensions = "".join(_extension(chance) for _ in range(chance.randrange(5)))
    session = "x" * chance.choice((0, 0, 32, 33))
    suites = chance.choice(("\x13\x01", "\x13\x01\x13\x02", "", "\x13"))
    body = "\3\3" + "r" * 32 + _sized(session, 1) + _sized(suites, 2) + _sized("\0", 1) + _sized(extensions, 2)
    message = "\1" + _sized(body, 3)
    size = chance.choice((1, 7, 100, 16384, 16384, 16384))
    text = "".join(f"\x16\3\1{_sized(message[at : at + size], 2)}" for at in range(0, len(message), size))
    if chance.random() < 0.4:
        place = chance.randrange(len(text))
        text = text[:place] + chr(chance.randrange(256)) + text[place + chance.randrange(3) :]
    return _cut(chance, text)


def _of_lines(chance: random.Random) -> Game:
    texts = ("-", "a.example", 'a"b', "a\\b", "\xe4", "\n", "x" * 9000, "", "a?b", "\x7f", "\u2028")
    texts_of = ("client", "gateway", "route", "upstream", "request_id", "detail")
    return {
        "texts": {name: chance.choice(texts) for name in texts_of if chance.random() < 0.4},
        "octets": {name: chance.choice((*METHODS[:7], *PATHS[:9], "\xe4", '"')) for name in ("method", "path")},
        "host": chance.choice(HOSTS[:6]),
        "numbers": {
            name: chance.choice((0, 1, 200, 2**31, 2**63)) for name in ("status", "bytes_in", "bytes_out", "attempts")
        },
        "grpc_status": chance.choice((-1, -1, -1, 0, 14)),
        "took_s": chance.choice((0.0, 0.0004, 0.0005, 0.123456, 1.9999996, 86400.5)),
        "is_tunnel": chance.random() < 0.2,
        "would_deny": chance.random() < 0.1,
    }


def _of_traces(chance: random.Random) -> Game:
    names = ("traceparent", "Traceparent", "tracestate", "trace_parent", "X-Request-Id", "user-agent", "X-Trace")
    lines = []
    for _ in range(chance.randrange(4)):
        trace_id, span_id = (
            chance.choice((0, 1 << 63, chance.getrandbits(128))),
            chance.choice((0, chance.getrandbits(64))),
        )
        context = f"{chance.choice(('00', '00', 'cc', 'ff'))}-{trace_id:032x}-{span_id:016x}-0{chance.randrange(4)}"
        value = chance.choice((context, context, context, "a=1,b=2", "a=1,a=2", 'curl/8 "\xe4"', "r-1", ""))
        lines.append(f"\r\n{chance.choice(names)}: {_harmed(chance, value) if chance.random() < 0.1 else value}")
    return {
        "block": "\r\nHost: a" + "".join(lines).replace("\r\n\r\n", "\r\n") + chance.choice(("", "\r\nX-A: 1")),
        "share": chance.choice((0.0, 0.5, 1.0)),
        "parent_share": chance.choice((None, None, 0.5, 1.0)),
        "continues": chance.random() < 0.9,
        "keeps_errors": chance.random() < 0.3,
        "status": chance.choice((0, 200, 404, 503)),
        "path": chance.choice(PATHS),
    }


# --- whole exchanges -----------------------------------------------------------------------------------------------
PLAIN = (
    "Content-Length: 5\r\n\r\nhello",
    "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "X-A: 1\r\n\r\n",
)


def _usual(chance: random.Random, start: str) -> str:
    """Mostly a message without a fault."""
    return f"{start}\r\nHost: a.example\r\n{chance.choice(PLAIN)}" if chance.random() < 0.8 else _message(chance, start)


def _of_exchanges(chance: random.Random) -> Game:
    text = ""
    for _ in range(chance.randrange(1, 3)):
        target = chance.choice(("http://a.example/", "http://a.example/x?y", "http://b.example/", "a.example:443"))
        method = "CONNECT" if target.endswith("443") else chance.choice(METHODS[:4])
        text += _usual(chance, f"{method} {target} HTTP/1.1")
    answers = [_usual(chance, f"HTTP/1.1 {chance.choice(STATUSES[:4])}") for _ in range(chance.randrange(1, 3))]
    game = _cut(chance, _harmed(chance, text))
    return {"data": text if chance.random() < 0.5 else game["data"], "cuts": game["cuts"][:8], "answers": answers}


MAKERS: dict[str, Callable[[random.Random], Game]] = {
    "requests": _of_requests,
    "responses": _of_responses,
    "chunks": _of_chunks,
    "fields": _of_fields,
    "frames": _of_frames,
    "routes": _of_routes,
    "hosts": _of_hosts,
    "addresses": _of_addresses,
    "destinations": _of_destinations,
    "pool": _of_pool,
    "hellos": _of_hellos,
    "lines": _of_lines,
    "traces": _of_traces,
    "exchanges": _of_exchanges,
}
