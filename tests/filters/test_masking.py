import html
import json
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.filters.masking import Mask
from egressproxy.model.secret import SecretBytes

VALUE = b'sk-T0p/Sec+ret"= \xe9~x'
JSON = json.dumps(VALUE.decode("latin-1"))[1:-1]
SECRETS = st.binary(min_size=8, max_size=24)


def feed(mask, pieces):
    held, out = b"", []
    for n, piece in enumerate(pieces):
        data, held = mask.feed(held, piece, n == len(pieces) - 1)
        out.append(data)
    return out


@pytest.mark.parametrize(
    "form",
    [
        VALUE, quote(VALUE).encode(), quote(VALUE, safe="").encode(), quote_plus(VALUE).encode(),
        b"sk-T0p%2fSec%2bret%22%3d%20%e9~x", VALUE.hex().encode(), VALUE.hex().upper().encode(),
        JSON.encode(), JSON.replace("/", "\\/").encode(),
        VALUE.decode("latin-1").encode("utf-16-le"), VALUE.decode("latin-1").encode("utf-16-be"),
    ],
)  # fmt: skip
def test_every_form_is_overwritten_at_its_length(form):
    data = b'{"echo": "' + form + b'"}'
    masked = Mask(SecretBytes(VALUE)).apply(data)
    assert masked == b'{"echo": "' + b"*" * len(form) + b'"}'


@pytest.mark.parametrize("before", [b"", b"a", b"ab", b"Bearer ", b"user:"])
@pytest.mark.parametrize("after", [b"", b"z", b"\n"])
def test_base64_of_something_around_the_secret_is_found(before, after):
    for encode in (b64encode, urlsafe_b64encode):
        text = encode(before + VALUE + after)
        masked = Mask(SecretBytes(VALUE)).apply(text)
        assert len(masked) == len(text)
        assert masked.count(b"*") >= len(VALUE) * 8 // 6 - 2


def test_data_without_the_secret_is_not_copied():
    data = b"x" * 1000
    assert Mask(SecretBytes(VALUE)).apply(data) is data


def test_a_short_secret_is_refused():
    with pytest.raises(ValueError, match="fewer than 8"):
        Mask(SecretBytes(b"1234567"))


def test_an_event_stream_is_not_delayed():
    assert feed(Mask(SecretBytes(b"sk-secret-1")), [b"data: one\n\n", b"data: two\n\n", b""]) == [
        b"data: one\n\n", b"data: two\n\n", b"",
    ]  # fmt: skip


def test_only_a_possible_beginning_is_held_back():
    assert feed(Mask(SecretBytes(b"sk-secret-1")), [b"abc sk-", b"other", b"sk-secr", b"et-1!"]) == [
        b"abc ", b"sk-other", b"", b"***********!",
    ]  # fmt: skip


@given(SECRETS, st.lists(st.binary(max_size=10), max_size=4), st.data())
def test_however_a_stream_is_cut_the_secret_is_masked_and_the_length_kept(secret, parts, data):
    body = secret.join(parts) if len(parts) > 1 else b"".join(parts) + secret
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    out = b"".join(feed(Mask(SecretBytes(secret)), pieces))
    assert len(out) == len(body)
    assert secret == b"*" * len(secret) or secret not in out


TEXT = "k<e>y&\"+'\u00e9\\/9"


@pytest.mark.parametrize(
    "form",
    [
        TEXT, html.escape(TEXT), html.escape(TEXT, quote=False),
        "k&lt;e&gt;y&amp;&#34;+&#39;\u00e9\\/9", "k&lt;e&gt;y&amp;&#34;&#43;&#39;\u00e9\\/9",  # Go: html, templates
        json.dumps(TEXT)[1:-1], json.dumps(TEXT, ensure_ascii=False)[1:-1],
        r'k\u003ce\u003ey\u0026\"+' + "'\u00e9" + r"\\/9",  # Go's encoding/json
    ],
)  # fmt: skip
def test_what_pages_and_other_encoders_of_json_write_is_overwritten(form):
    assert Mask(SecretBytes(TEXT.encode())).apply(f"<{form}>".encode()) == b"<" + b"*" * len(form.encode()) + b">"


KEY = "sk+live/42==Zz"
#: How each character may be written.
WRITTEN = [
    "&#{0};", "&#x{0:x};", "&#X{0:04X};", "&#0{0};", "%{0:02x}", "%{0:02X}", "\\u{0:04x}", "\\u{0:04X}",
    "\\x{0:02x}", "\\u{{{0:x}}}",
]  # fmt: skip


@pytest.mark.parametrize("which", ["/+=", KEY])
@pytest.mark.parametrize("written", WRITTEN)
def test_each_way_to_write_a_character_is_overwritten_in_one_piece_and_in_many(written: str, which: str):
    form = "".join(written.format(ord(each)) if each in which else each for each in KEY).encode()
    body = b"<p>" + form + b" and " + form + b"</p>"
    wanted = b"<p>" + b"*" * len(form) + b" and " + b"*" * len(form) + b"</p>"
    mask = Mask(SecretBytes(KEY.encode()))
    assert mask.apply(body) == wanted
    for size in (1, 7):
        assert b"".join(feed(mask, [body[at : at + size] for at in range(0, len(body), size)])) == wanted


def test_names_of_html_and_mixtures_are_overwritten():
    form = b"sk&plus;live&sol;42&equals;%3dZ\\u007a"
    assert Mask(SecretBytes(KEY.encode())).apply(b"(" + form + b")") == b"(" + b"*" * len(form) + b")"


def test_a_placeholder_is_shown_for_what_is_percent_encoded_and_not_within_markup():
    mask = Mask(SecretBytes(KEY.encode()), shown=b"placeholder")
    assert mask.apply(b"sk%2Blive%2f42==Zz " + KEY.encode()) == b"placeholder placeholder"
    assert mask.apply(b"sk&#43;live/42==Zz") == b"*" * 18


@pytest.mark.parametrize("written", [b"\\u0061", b"&#97;", b"%61", b"\\ud83d\\ude00"])
def test_no_long_text_of_a_response_is_remembered(written: bytes):
    mask = Mask(SecretBytes(KEY.encode()))
    mask.feed(b"", written * 1000, False)
    assert max(len(escape[0]) for escape in mask._escape.finditer(written * 1000)) <= 14


@pytest.mark.parametrize("written", ["%{:02x}", "%{:02X}", "&#{};", "&#x{:X};", "\\u{:04x}", "\\x{:02x}", "\\/"])
def test_base64_of_which_a_mark_is_escaped_is_overwritten(written: str):
    key = b"key>>>???-key~1234>"
    mask = Mask(SecretBytes(key), shown=b"placeholder")
    for before in range(3):
        whole = b64encode(b"u:"[:before] + key).decode().rstrip("=")
        said = "".join(
            written.format(ord(each)) if each == "/" or (each == "+" and "{" in written) else each for each in whole
        )
        body = f"<{said}>".encode()
        core = whole[(before * 8 + 5) // 6 : (before + len(key)) * 8 // 6]
        assert "/" in core
        for made in (mask.apply(body), b"".join(feed(mask, [body[at : at + 3] for at in range(0, len(body), 3)]))):
            assert core[4:-4].encode() not in made.replace(written.format(47).encode(), b"/").replace(
                written.format(43).encode(), b"+"
            )
            assert b"*" * 16 in made
