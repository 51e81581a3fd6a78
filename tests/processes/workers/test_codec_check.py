"""A codec that reads otherwise than it is meant to is found before it serves."""

from __future__ import annotations

import re

import pytest

from egressproxy.errors import Reason
from egressproxy.model import fields
from egressproxy.processes.workers import codec_check
from egressproxy.processes.workers.codec_check import Misread, check_codec
from egressproxy.protocols.http1 import chunked, framing, request_head, response_head
from egressproxy.protocols.http1.framing import HeadLimits
from tests.support.builds import of_sources

REQUESTS, RESPONSES = HeadLimits(), HeadLimits(max_fields=256)


def test_this_python_reads_what_is_meant():
    check_codec(REQUESTS, RESPONSES)


def patched(monkeypatch: pytest.MonkeyPatch, module: object, name: str, old: bytes, new: bytes) -> None:
    """Put another expression in the place of this one, or of those that this function makes."""
    made = getattr(module, name)

    def other(pattern: re.Pattern[bytes]) -> re.Pattern[bytes]:
        assert old in pattern.pattern
        return re.compile(pattern.pattern.replace(old, new), pattern.flags)

    is_made = isinstance(made, re.Pattern)
    monkeypatch.setattr(module, name, other(made) if is_made else lambda *arguments: other(made(*arguments)))


@of_sources
@pytest.mark.parametrize(
    ("module", "name", "old", "new"),
    [
        (request_head, "plain_section_pattern", b"\\r\\n\\r\\n", b"\\r\\n"),
        (request_head, "plain_section_pattern", b"\\x20-\\x7e", b"\\x00\\x20-\\x7e"),
        (request_head, "plain_section_pattern", b"[oO][sS][tT]", b"[oO][sS][sS]"),
        (request_head, "plain_section_pattern", b"}+:", b"}+ ?:"),
        (request_head, "any_section_pattern", b"{0,128}", b"{0,4}"),
        (request_head, "any_section_pattern", b"}+:", b"}+[ \\t]*:"),
        (request_head, "_HOP", b"([^\\r]*)", b"([^\\r]?)"),
        (request_head, "_TWINS", b"_*+:", b"_*+;"),
        (response_head, "plain_section_pattern", b"[cC]", b"[yY]"),
        (response_head, "plain_section_pattern", b"}+:", b"}+ ?:"),
        (response_head, "_HOP", b"[vV]", b"[vW]"),
        (chunked, "_CHUNK_LINE", b"{1,16}+", b"{1,17}+"),
        (chunked, "_CHUNK_LINE", b'])*"', b'])*"?'),
        (chunked, "_CHUNK_LINE", b"[0-9A-Fa-f]", b"[+0-9A-Fa-f]"),
        (chunked, "_TRAILERS", b"}+:", b"}+ ?:"),
        (chunked, "_TRAILERS", b")*)", b")?)"),
    ],
)  # fmt: skip
def test_an_expression_that_matches_wrongly_is_found(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, old: bytes, new: bytes
):
    patched(monkeypatch, module, name, old, new)
    with pytest.raises(Misread, match=r"misreads HTTP: .*nothing is served"):
        check_codec(REQUESTS, RESPONSES)


def test_a_field_that_is_not_found_or_has_another_value_is_found(monkeypatch: pytest.MonkeyPatch):
    for wrong in (rb"\r\nnothing:(.*)", rb"\r\n[^:\r]*:([^\r]*)"):
        monkeypatch.setattr(fields, "finder", lambda _name, wrong=wrong: re.compile(wrong))
        with pytest.raises(Misread):
            check_codec(REQUESTS, RESPONSES)


def test_an_expression_that_fails_is_found_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(request_head, "plain_section_pattern", lambda *_: re.compile(b"(.*)"))  # too few groups
    with pytest.raises(Misread):
        check_codec(REQUESTS, RESPONSES)


def test_every_reason_of_a_bad_field_section_is_among_the_messages():
    refused = {meant for _, _, meant in (*codec_check._REQUESTS, *codec_check._RESPONSES) if isinstance(meant, Reason)}
    assert refused >= {Reason.BAD_FIELD, Reason.BAD_FRAMING, Reason.BAD_HOST, Reason.UNKNOWN_CODING}
    assert len(codec_check._REQUESTS) + len(codec_check._RESPONSES) > 12
    assert framing.BARE_CR_OR_LF.search(b"a\nb")
