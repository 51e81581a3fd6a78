# ruff: noqa: E501
"""What each entity is, and what only looks like it."""

import re

import phonenumbers
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from egressproxy.ai.content.addresses import Emails
from egressproxy.ai.content.check_digits import is_aadhaar, is_card
from egressproxy.ai.content.entities import ENTITIES, scanner_of
from egressproxy.ai.content.lettered import IBAN_SHAPES, Lettered, iban_at
from egressproxy.ai.content.national_ids import COUNTRIES, lettered_of, numbers_of
from egressproxy.ai.content.numbers import CARD_FORM, Numbers, card_at
from egressproxy.ai.content.phones import Phones, known_regions
from egressproxy.ai.content.secret_keys import _TOKENS, SecretKeys
from egressproxy.ai.content.spans import Span
from tests.support.properties import examples

#: Values that their issuers publish as examples, and test numbers.
FOUND = {
    "EMAIL": [
        "alice@example.com", "o'neil+x@mail.example.co.uk", "first.last@xn--mnchen-3ya.de", "müller@münchen.de",
        "用户@例子.公司", "a_b%c@example.museum",
    ],
    "PHONE": [
        "+49 30 901820", "+49 (0)30 901820", "+1 415-555-2671", "+44 20 7946 0958", "0033 1 42 68 53 00",
        "+81 3-1234-5678", "+86 138 0013 8000",
    ],
    "CARD": [
        "4111111111111111", "4111 1111 1111 1111", "5555-5555-5555-4444", "378282246310005", "6011111111111117",
        "30569309025904", "3530111333300000", "2223003122003222", "6200000000000005",
    ],
    "IBAN": [
        "DE89370400440532013000", "DE89 3704 0044 0532 0130 00", "GB33BUKB20201555555555", "gb33 bukb 2020 1555 5555 55",
        "NO9386011117947", "MT84MALT011000012345MTLCAST001S", "FR1420041010050500013M02606",
    ],
    "NATIONAL_ID": [
        "123-45-6789", "123 45 6789", "AB 12 34 56 C", "JG103759A", "86095742719", "86 095 742 719",
        "2 55 08 14 168 025 38", "12345678Z", "X1234567L", "X-1234567-L", "RSSMRA85T10A562S", "756.9217.0769.85", "529.982.247-25",
        "44051401359", "9999 4105 7058", "11010519491231002X", "811218-9876", "19811218-9876",
    ],
    "IP_ADDRESS": ["192.168.1.1", "8.8.8.8", "2001:db8::1", "fe80::1ff:fe23:4567:890a", "::1", "::ffff:192.0.2.1"],
    "API_KEY": [
        "sk-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH", "sk-proj-ab_cd-efghijklmnopqrstuv", "sk-ant-api03-" + "x" * 40,
        "AKIAIOSFODNN7EXAMPLE", "ghp_" + "a1" * 18, "github_pat_" + "a1" * 20, "xoxb-123456789012-abcdefghij",
        "AIza" + "x" * 35, "sk_live_abcdefghij0123", "rk_test_abcdefghij0123", "glpat-abcdefghijklmnopqrst", "hf_" + "a" * 34,
        "npm_" + "a" * 36, "SG." + "a" * 22 + "." + "b" * 43, "GOCSPX-" + "a" * 28, "AGE-SECRET-KEY-1" + "Q" * 58,
        "dop_v1_" + "0f" * 32, "gsk_" + "a" * 52,
    ],
    "JWT": ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc_def-123"],
    "PRIVATE_KEY": [
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nabc=\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----\r\nb3Bl\r\n-----END OPENSSH PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\\nMIIE\\n-----END PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0F\n\nabc\n-----END RSA PRIVATE KEY-----",
    ],
}  # fmt: skip
NOT_FOUND = {
    "EMAIL": ["alice@localhost", "@example.com", "alice@", "a @ b.com", "alice@example.", "user@host:path", "x@1.2"],
    "PHONE": ["2024-11-22 19:10", "1234567890", "+99 123 456 789", "$ 1,234,567.89", "12345", "+49", "030 901820"],
    "CARD": ["4111111111111112", "41111111111111111111", "1234567812345670", "411111111111111", "4111-1111"],
    "IBAN": ["DE88370400440532013000", "DE8937040044053201300", "XX89370400440532013000", "DE893704004405320130001"],
    "NATIONAL_ID": [
        "000-12-3456", "666-12-3456", "923-12-3456", "123-00-4567", "123456789", "BG123456A", "AB123456E", "86095742718",
        "12345678A", "X1234567A", "RSSMRA85T10A562T", "756.9217.0769.84", "529.982.247-26", "111.111.111-11",
        "44051401358", "9999 4105 7059", "110105194912310021", "811218-9875",
    ],
    "IP_ADDRESS": ["1.2.3.4.5", "256.1.1.1", "12:30:45", "std::vector", "a::b", "v1.2.3", "1:2:3", "01.02.03.04x"],
    "API_KEY": ["sk-short", "ask-abcdefghijklmnopqrstuvwxyz0123456789", "AKIAIOSFODNN7", "task_live_abcdefghij", "ghp_abc", "risk-averse"],
    "JWT": ["eyJhbGci", "eyJhbGciOiJIUzI1NiJ9.", "a.b.c"],
    "PRIVATE_KEY": ["-----BEGIN PUBLIC KEY-----", "-----BEGIN CERTIFICATE-----", "BEGIN PRIVATE KEY"],
}  # fmt: skip


def pairs(table):
    return [pytest.param(entity, value, id=f"{entity}-{value[:40]!a}") for entity in table for value in table[entity]]


@pytest.mark.parametrize(("entity", "value"), pairs(FOUND))
@pytest.mark.parametrize("around", ["{}", "is ({}), and", "x\n{}\ny", "é„{}“"])
def test_it_is_found_from_its_first_character_to_its_last(entity, value, around):
    text = around.format(value)
    begin = text.index(value)
    found = [(s, e, kind) for s, e, kind, _ in scanner_of([entity]).spans(text)]
    assert found == [(begin, begin + len(value), entity)]


@pytest.mark.parametrize(("entity", "value"), pairs(NOT_FOUND))
def test_it_only_looks_like_it(entity, value):
    assert scanner_of([entity]).spans(f"is {value} !") == []


def test_numbers_of_a_region_are_found_where_it_is_named():
    said = "call 030 901820 or (415) 555-2671"
    assert scanner_of(["PHONE"]).spans(said) == []
    assert [said[s:e] for s, e, *_ in scanner_of(["PHONE"], regions=("DE",)).spans(said)] == ["030 901820"]
    assert [said[s:e] for s, e, *_ in scanner_of(["PHONE"], regions=("US",)).spans(said)] == ["(415) 555-2671"]


def test_what_stands_behind_a_number_is_not_taken():
    said = "4111 1111 1111 1111 12/25, +1 415 555 2671 2024"
    found = scanner_of(["CARD", "PHONE"]).spans(said)
    assert [said[s:e] for s, e, *_ in found] == ["4111 1111 1111 1111", "+1 415 555 2671"]


@pytest.mark.parametrize(
    "said",
    [
        "４１１１ １１１１ １１１１ １１１１", "٤١١١١١١١١١١١١١١١", "4111\u00a01111\u20091111\u202f1111", "4111‑1111–1111−1111",
        "41\u200b11111\u200d111111\ufeff111", "4\U000e0101111\U000e01ef111111111111", "4\ufe0f\u20e31\ufe0f\u20e311111111111111",
        "4\u0332111\u0301111111111111", "4\u3164111\u115f111111111111", "4\u180b11\ufffb1111111111111", "𝟒𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏", "④①①①①①①①①①①①①①①①",
    ],
)  # fmt: skip
def test_digits_of_other_scripts_and_what_nobody_sees_hide_no_card(said):
    found = scanner_of(["CARD"]).spans(f"a {said} b")
    assert [(s, e) for s, e, *_ in found] == [(2, 2 + len(said))]


def test_full_width_signs_hide_no_address():
    said = "al\u00adice＠example。com"
    assert [said[s:e] for s, e, *_ in scanner_of(["EMAIL"]).spans(said)] == [said]


def test_the_longer_of_two_that_begin_together_is_taken_and_no_character_is_left():
    said = "+49 30 901820@example.com"
    scanner = scanner_of(["EMAIL", "PHONE"])
    assert scanner.replaced(said, lambda entity, value: f"<{entity}>") == "<PHONE><EMAIL>"


def test_own_patterns_come_before_all():
    scanner = scanner_of(["EMAIL"], patterns=[("STAFF", r"[a-z]+@example\.com", 40)])
    assert [entity for *_, entity, _ in scanner.spans("bob@example.com bob@example.org")] == ["STAFF", "EMAIL"]


def test_a_match_of_an_own_pattern_ends_where_it_may_be_no_longer():
    scanner = scanner_of([], patterns=[("DIGITS", r"\d+", 8)])
    assert (
        scanner.replaced("1" * 20, lambda entity, value: f"<{len(value)}>") == "<8>" + "<1>" * 12
    )  # the rest of what begins inside


@pytest.mark.parametrize(
    ("wanted", "more", "message"),
    [
        (["EMAILS"], {}, "'EMAILS' is no entity; known are EMAIL, PHONE"),
        (["PHONE"], {"regions": ("XX",)}, "'XX' is no region"),
        (["NATIONAL_ID"], {"countries": ("ZZ",)}, "'ZZ' has no identifiers here; there are those of BR, CH, CN"),
        ([], {"patterns": [("A", "(?=x)", 8)]}, "is not an expression of RE2"),
        ([], {"patterns": [("A", "x*", 8)]}, "matches the empty text"),
    ],
)
def test_a_wrong_choice_says_what_is_wrong(wanted, more, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        scanner_of(wanted, **more)


def test_every_country_has_an_identifier_that_is_found_only_with_it():
    values = {country: [] for country in COUNTRIES}
    for value in FOUND["NATIONAL_ID"]:
        for country in COUNTRIES:
            if scanner_of(["NATIONAL_ID"], countries=(country,)).spans(value):
                values[country].append(value)
    assert [country for country in COUNTRIES if not values[country]] == []


def test_every_entity_is_tested():
    assert set(FOUND) == set(NOT_FOUND) == set(ENTITIES)


# --- what adversarial numbers cost, and that nothing is passed over for it
_START = re.compile(r"[0-9+(](?<![0-9].)(?=(?:[ ./()-]{0,2}[0-9]){6})")
_WORDS = (
    "536-90-4399", "9434 7654 3210", "86095742719", "2 84 05 88 888 888 47", "12345678Z", "756.9217.0769.85",
    "811228-9874", "44051401359", "111.444.777-35", "2341-2341-2346", "11010519491231002X", "+49 30 901820",
    "0049 30 901820", "(212) 555-0123", "4111 1111 1111 1111", "5105 1051 0510 5100", "3782-822463-10005", "2221 0000 0000 0009",
    " ", "-", ".", "+", "(", ")", "a", "x1", "\n", "1", "0", "42", "777", "0000",
)  # fmt: skip


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(st.sampled_from(_WORDS), max_size=12).map("".join), st.sampled_from([(), ("US", "DE")]))
def test_each_kind_of_number_has_the_form_that_is_said_of_it(text: str, regions: tuple[str, ...]):
    phones = Phones(regions)
    kinds = [
        ("CARD", card_at, CARD_FORM),
        *(("ID", *form) for form in numbers_of(COUNTRIES)),
        ("P", phones, phones.form),
    ]
    found: list[Span] = []
    Numbers(kinds).find(text, 0, found)
    starts = [match.start() for match in _START.finditer(text)]
    every = [Span(at, end, entity, at) for at in starts for entity, find, _ in kinds if (end := find(text, at))]
    assert found == every


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(st.sampled_from(_WORDS), max_size=8).map("".join))
@example("4111 1111 1111 1111 42 777")
@example("4111.1111-1111 1111 1")
@example("4111111111111111 0000 0000")
def test_a_card_is_the_longest_of_its_groups_that_are_one(text: str):
    for at in range(len(text)):
        groups = re.match(r"[2-689][0-9]{0,18}(?:[ .-][0-9]{1,18}){0,6}(?![0-9])", text[at:])
        said = [] if groups is None else [m.end() for m in re.finditer("[0-9]+", groups[0])]
        ends = [end for end in said if is_card(digits := re.sub("[ .-]", "", text[at : at + end])) and len(digits) < 20]
        assert card_at(text, at) == (at + ends[-1] if ends else 0)


def test_the_plan_of_every_region_is_found_with_separators():
    kinds = (phonenumbers.PhoneNumberType.FIXED_LINE, phonenumbers.PhoneNumberType.MOBILE)
    for region in sorted(known_regions()):
        phones = Phones((region,))
        numbers, hasty = Numbers([("PHONE", phones, "")]), Numbers([("PHONE", phones, phones.form)])
        examples = [phonenumbers.example_number_for_type(region, kind) for kind in kinds]
        said = [
            phonenumbers.format_number(example, form)
            for example in examples
            if example is not None
            for form in (phonenumbers.PhoneNumberFormat.NATIONAL, phonenumbers.PhoneNumberFormat.E164)
        ]
        text = " or ".join(
            [*said, *(" ".join(each) for each in said), *(each.replace(" ", "-") + " 12" for each in said)]
        )
        found: list[Span] = []
        in_haste: list[Span] = []
        numbers.find(text, 0, found)
        hasty.find(text, 0, in_haste)
        assert in_haste == found, region
        assert len(found) >= len(said) // 2, region


@pytest.mark.parametrize("text", ["1 " * 4096, "11 12 " * 1300, "(1" * 4000, "1.1.1." * 1300, "10/10/" * 1300])
def test_of_numbers_without_a_form_none_is_looked_at_closer(text: str):
    looked: list[int] = []
    kinds = [("CARD", CARD_FORM), *(("ID", form) for _, form in numbers_of(COUNTRIES)), ("PHONE", Phones(()).form)]
    numbers = Numbers([(name, lambda _, at: looked.append(at) or 0, form) for name, form in kinds])
    numbers.find(text, 0, [])
    assert len(looked) <= 2


def test_a_checksum_of_verhoeff_is_worked_out_by_four_digits_at_once():
    right = [number for number in range(234123412300, 234123412400) if is_aadhaar(str(number))]
    assert len(right) == 10
    assert 234123412346 in right
    assert not is_aadhaar("234123412347")
    assert not is_aadhaar("324123412346")


_LETTERS = (
    "DE89 3704 0044 0532 0130 00", "GB29NWBK60161331926819", "AB 12 34 56 C", "AB123456C", "RSSMRA85T10A562S", "X1234567L",
    "X-1234567-L", "y7654321g", " ", "-", "a", "AB", "1", "12", "RSSMRA", "\n", "é",
)  # fmt: skip


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(st.sampled_from(_LETTERS), max_size=8).map("".join), st.integers(0, 9))
def test_what_begins_with_letters_has_one_of_the_shapes_that_are_said_of_it(text: str, start: int):
    kinds = [("IBAN", iban_at, IBAN_SHAPES), *(("ID", *form) for form in lettered_of(COUNTRIES))]
    found: list[Span] = []
    Lettered(kinds).find(text, start, found)
    places = [at for at in range(start, len(text)) if at == 0 or not text[at - 1].isalnum()]
    every = [Span(at, end, entity, at) for entity, end_of, _ in kinds for at in places if (end := end_of(text, at))]
    assert sorted(found) == sorted(every)


@pytest.mark.parametrize("token", _TOKENS)
@settings(deadline=None, max_examples=20)
@given(st.data())
def test_every_token_is_found_by_its_first_word(token: str, data: st.DataObject):
    said = data.draw(st.from_regex(re.compile(token, re.ASCII), fullmatch=True).filter(lambda text: len(text) < 200))
    found: list[Span] = []
    SecretKeys(frozenset(("API_KEY",))).find(f"key {said}", 4, found)
    begin = 9 if said[4:8] == ".xox" else 4  # what stands before is no secret
    assert Span(begin, 4 + len(said), "API_KEY", begin) in found


LOCAL, DOMAIN = re.compile(r"[\w.%+'~-]{1,64}"), re.compile(r"[\w.-]{1,253}")
LABELS = re.compile(r"(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.)+[^\W\d_](?:[\w-]{0,61}[^\W_])")


def addresses(text: str, start: int) -> list[tuple[int, int]]:
    """Where addresses stand, step by step."""
    found = []
    for at in [place for place, character in enumerate(text) if character == "@" and place >= start]:
        local = LOCAL.match(text[max(start, at - 64) : at][::-1])
        domain = DOMAIN.match(text, at + 1)
        if local is not None and domain is not None:
            labels = LABELS.match(domain[0])
            length = len(local[0].rstrip(".'~-"))
            if labels is not None and length:
                found.append((at - length, at + 1 + labels.end()))
    return found


@given(
    st.lists(
        st.sampled_from(
            ["a", "é", "@", ".", "b.example", "_", "'", "~", "-", "%", "+", " ", "1", "a" * 62, "c" * 63, "d." * 125]
        ),
        max_size=8,
    ).map("".join),
    st.integers(0, 70),
)
@settings(deadline=None, max_examples=examples(500))
@example("'" * 64 + "@b.example", 0)
@example("a" * 64 + "." + "@b.example", 0)
@example("a@" + "d." * 125 + "example", 0)
def test_an_address_is_what_is_found_step_by_step(text: str, start: int):
    found: list[Span] = []
    Emails().find(text, start, found)
    assert [(span.start, span.end) for span in found] == addresses(text, start)
    assert all((span.entity, span.began) == ("EMAIL", span.start) for span in found)
