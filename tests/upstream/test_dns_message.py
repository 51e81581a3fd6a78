"""DNS messages are written as dnspython writes them; honest answers are read alike, hostile ones refused by counts."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, cast

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.upstream import dns_message
from egressproxy.upstream.dns_message import (
    MAX_LINKS,
    MAX_RECORDS,
    MAX_REPLY_BYTES,
    MAX_STEPS,
    BadReply,
    DnsAnswer,
    DnsQuestion,
    code_name,
    encode_name,
    is_reply,
    is_truncated,
    read,
    write_query,
)
from tests.support.properties import examples

NAME = dns.name.from_text("a.evil.test.")
QUERY = dns.message.make_query(NAME, "A", use_edns=0, payload=1232, id=7)
ASKED = DnsQuestion(QUERY.to_wire(), NAME.to_wire(), 1)
ASKED_6 = DnsQuestion(dns.message.make_query(NAME, "AAAA", id=7).to_wire(), NAME.to_wire(), 28)
TO_NAME = b"\xc0\x0c"
A, NS, CNAME, SOA, TXT, OPT = 1, 2, 5, 6, 16, 41


def record(owner: bytes, kind: int, data: bytes, ttl: int = 60, class_: int = 1) -> bytes:
    return owner + struct.pack("!HHIH", kind, class_, ttl, len(data)) + data


def message(
    answers: Sequence[bytes] = (),
    authorities: Sequence[bytes] = (),
    more: Sequence[bytes] = (),
    *,
    code: int = 0,
) -> bytes:
    head = struct.pack("!HHHHHH", 7, 0x8180 | code, 1, len(answers), len(authorities), len(more))
    return head + ASKED.section + b"".join((*answers, *authorities, *more))


#: Where the first record of a message begins, and the data of a first record whose owner is TO_NAME.
FIRST = 12 + len(ASKED.section)
FIRST_DATA = FIRST + 12


def pointer(at: int) -> bytes:
    return struct.pack("!H", 0xC000 | at)


def long_name(labels: int) -> bytes:
    return b"\x01x" * labels + b"\x00"


# --- what is honest --------------------------------------------------------------------------------------------------
def test_addresses_of_the_name_come_once_each_with_their_least_ttl():
    wire = message([record(TO_NAME, A, b"\xc0\0\2\1", 60), record(TO_NAME, A, b"\xc0\0\2\2", 7),
                    record(TO_NAME, A, b"\xc0\0\2\1", 60)])  # fmt: skip
    assert read(wire, ASKED)[1] == DnsAnswer((ip_address("192.0.2.1"), ip_address("192.0.2.2")), 7)


def test_the_other_family_and_other_classes_are_passed_over():
    wire = message([record(TO_NAME, 28, bytes(15) + b"\1"), record(TO_NAME, A, b"\x7f\0\0\1", class_=3)])
    assert read(wire, ASKED)[1] == DnsAnswer((), 0)
    assert read(wire, ASKED_6)[1].addresses == (IPv6Address("::1"),)


def test_a_chain_may_come_in_any_order_and_in_any_case():
    wire = message([
        record(b"\x01C\x04evil\x04TEST\0", A, b"\xc0\0\2\1", 60),
        record(b"\x01b\x04Evil\x04test\0", CNAME, b"\x01c\x04EVIL\x04test\0", 5),
        record(b"\x01A\x04evil\x04test\0", CNAME, b"\x01B\x04evil\x04test\0", 50),
    ])  # fmt: skip
    through = ("b.evil.test", "c.evil.test")
    assert read(wire, ASKED)[1] == DnsAnswer((ip_address("192.0.2.1"),), 5, through=through)


SOA_DATA = b"\0\0" + struct.pack("!IIIII", 1, 2, 3, 4, 17)


def test_the_names_of_a_chain_are_told_in_their_order():
    first, second = b"\x01B\x04test\x00", b"\x03x.y\x04test\x00"
    wire = message([record(second, A, b"\xc0\0\2\1"), record(TO_NAME, CNAME, first), record(first, CNAME, second)])
    assert read(wire, ASKED)[1].through == ("b.test", "x\\046y.test")  # not the name of these three labels


def test_a_byte_that_names_lack_is_written_as_an_escape():
    asked = DnsQuestion(b"", NAME.to_wire(), 12)
    names = [b"\x06evil\r\n\x04test\x00", b"\x0bx, b.test\x1b[\x00", b"\x03\xe2\x80\xae\x00", b"\x01\\\x00", b"\x00"]
    wire = message([record(TO_NAME, 12, name) for name in names])
    assert read(wire, asked)[1].names == (
        r"evil\013\010.test",
        r"x\044\032b\046test\027\091",
        r"\226\128\174",
        r"\092",
        "",
    )


def test_the_bit_of_authentic_data_is_read():
    wire = bytearray(message([record(TO_NAME, A, b"\xc0\0\2\1")]))
    assert not read(bytes(wire), ASKED)[1].is_authentic
    wire[3] |= 0x20
    assert read(bytes(wire), ASKED)[1].is_authentic


def test_the_names_of_an_address_are_read():
    asked = DnsQuestion(b"", NAME.to_wire(), 12)
    target = b"\x04lb-7\x07EXAMPLE\x00"
    answers = [
        record(TO_NAME, CNAME, b"\x01c\x00", 50),
        record(b"\x01c\x00", 12, target),
        record(TO_NAME, A, b"\xc0\0\2\1"),
    ]
    head = struct.pack("!HHHHHH", 7, 0x8180, 1, len(answers), 0, 0)
    wire = head + asked.section + b"".join(answers)
    assert read(wire, asked)[1] == DnsAnswer((), 50, names=("lb-7.example",))


@pytest.mark.parametrize(("ttl", "expected"), [(60, 17.0), (9, 9.0), (0x80000001, 0.0)])
def test_a_negative_answer_has_the_ttl_of_its_soa(ttl: int, expected: float):
    authorities = [record(b"\0", NS, b"\0"), record(b"\x04test\0", SOA, SOA_DATA, ttl)]
    assert read(message([], authorities), ASKED)[1] == DnsAnswer((), expected)
    reply = read(message([], authorities, code=3), ASKED)
    assert reply == (3, DnsAnswer((), expected, is_nxdomain=True))
    assert read(message(code=3), ASKED)[1] == DnsAnswer((), 0.0, is_nxdomain=True)


def test_the_code_has_its_extension():
    option = record(b"\0", OPT, b"", ttl=0x01000000, class_=1232)
    assert read(message([record(TO_NAME, A, bytes(4))], [], [option]), ASKED)[0] == dns.rcode.BADVERS


def test_octets_behind_the_message_mean_nothing():
    assert read(message([record(TO_NAME, A, bytes(4))]) + b"more", ASKED)[1].addresses == (IPv4Address(0),)


# --- whose answer it is ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda wire: wire, True),
        (lambda wire: wire.replace(b"evil", b"EVIL"), True),
        (lambda wire: b"\0\1" + wire[2:], False),
        (lambda wire: wire[:2] + b"\x01" + wire[3:], False),  # a query
        (lambda wire: wire[:2] + b"\x91" + wire[3:], False),  # another opcode
        (lambda wire: wire.replace(b"evil", b"good"), False),
        (lambda wire: wire[:5] + b"\2" + wire[6:], False),
        (lambda wire: wire[:5] + b"\0" + wire[6:], False),
        (lambda wire: wire[:3] + b"\x82\0\0" + wire[6:12], True),  # SERVFAIL without the question
        (lambda wire: wire[:11], False),
        (lambda wire: b"", False),
        (lambda wire: wire[:20], False),
    ],
)
def test_what_belongs_to_a_question(change: Callable[[bytes], bytes], expected: bool):
    assert is_reply(change(message()), ASKED) is expected


def test_a_truncated_answer_says_so():
    assert not is_truncated(message())
    assert is_truncated(message()[:2] + b"\x83" + message()[3:])


# --- the bounds ------------------------------------------------------------------------------------------------------
def refusal(wire: bytes) -> str:
    with pytest.raises(BadReply) as caught:
        read(wire, ASKED)
    return str(caught.value)


@pytest.mark.parametrize("section", [0, 1, 2])
def test_an_answer_of_too_many_records_is_refused_before_any_is_read(section: int):
    counts = [0, 0, 0]
    counts[section] = MAX_RECORDS + 1
    wire = struct.pack("!HHHHHH", 7, 0x8180, 1, *counts) + ASKED.section
    assert refusal(wire) == f"{MAX_RECORDS + 1} records: more than {MAX_RECORDS} are not read"


def test_the_records_of_all_sections_count():
    wire = struct.pack("!HHHHHH", 7, 0x8180, 1, 400, 400, 400) + ASKED.section
    assert refusal(wire).startswith("1200 records")


def test_as_many_records_as_that_are_read_and_some_of_their_addresses_used():
    wire = message([record(TO_NAME, A, struct.pack("!I", number)) for number in range(MAX_RECORDS)])
    assert len(read(wire, ASKED)[1].addresses) == 32


def test_an_answer_of_too_many_octets_is_refused():
    filler = record(b"\0", TXT, bytes(MAX_REPLY_BYTES - len(message()) - 11))
    assert read(message([], [filler]), ASKED)[1] == DnsAnswer((), 0)
    assert (
        refusal(message([], [filler]) + b"x")
        == f"{MAX_REPLY_BYTES + 1} bytes: more than {MAX_REPLY_BYTES} are not read"
    )


class FilterSteps(dns_message._Reading):
    """Remembers the last reading: how many steps it took."""

    last: dns_message._Reading

    def __init__(self, wire: bytes, question: DnsQuestion) -> None:
        super().__init__(wire, question)
        FilterSteps.last = self


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    monkeypatch.setattr(dns_message, "_Reading", FilterSteps)
    return lambda: FilterSteps.last._steps


def test_names_in_data_that_nobody_asked_for_are_not_read(steps: Callable[[], int]):
    """200 NS records of 120 labels each, in 3 KB."""
    first = record(TO_NAME, NS, long_name(120))
    others = [record(TO_NAME, NS, b"\2%02d" % (n % 100) + pointer(FIRST_DATA + 2 * (n % 100))) for n in range(199)]
    assert read(message([], [first, *others]), ASKED)[1] == DnsAnswer((), 0)
    assert steps() == 200 + 4  # one pointer each, and the labels of the name that they point at


def test_a_name_that_is_pointed_at_is_read_once(steps: Callable[[], int]):
    first = record(TO_NAME, NS, long_name(120))
    others = [record(pointer(FIRST_DATA), A, bytes(4)) for _ in range(999)]
    read(message([first, *others]), ASKED)
    assert steps() == 1000 + 4 + 121


def test_names_of_too_many_labels_together_are_refused(steps: Callable[[], int]):
    names = [record(TO_NAME, TXT, long_name(120)) for _ in range(64)]
    size = len(names[0])
    places = [FIRST_DATA + size * n + 2 * shift for shift in range(10) for n in range(64)]
    answers = [*names, *(record(pointer(place), A, bytes(4)) for place in places)]
    assert refusal(message(answers)) == f"more than {MAX_STEPS} labels and pointers in its names"
    assert steps() == MAX_STEPS + 1


@pytest.mark.parametrize("links", [MAX_LINKS, MAX_LINKS + 1])
def test_a_chain_has_an_end(links: int):
    def name(number: int) -> bytes:
        return b"\2%02d\0" % number if number else TO_NAME

    chain = [record(name(n), CNAME, name(n + 1)) for n in range(links)]
    wire = message([*chain, record(name(links), A, bytes(4))])
    if links == MAX_LINKS:
        assert read(wire, ASKED)[1].addresses
    else:
        assert refusal(wire) == f"more than {MAX_LINKS} CNAME records, or a loop"


def test_a_chain_that_leads_to_itself_is_refused():
    assert "a loop" in refusal(message([record(TO_NAME, CNAME, TO_NAME)]))


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([record(pointer(FIRST), A, bytes(4))], "backwards"),
        ([record(pointer(FIRST + 2), A, bytes(4))], "backwards"),
        ([record(b"\1a" + pointer(FIRST), A, bytes(4))], "backwards"),
        ([record(TO_NAME, CNAME, pointer(FIRST_DATA))], "backwards"),
        ([record(b"\x40" + bytes(64), A, bytes(4))], "unknown type"),
        ([record(b"\x80", A, bytes(4))], "unknown type"),
        ([record(long_name(127), A, bytes(4)), record(b"\1a" + pointer(FIRST), A, bytes(4))], "more than 255 bytes"),
        ([record(long_name(128), A, bytes(4))], "more than 255 bytes"),
        ([record(TO_NAME, A, bytes(5))], "wrong length"),
        ([record(TO_NAME, A, b"")], "wrong length"),
        ([record(TO_NAME, A, bytes(4))[:-1]], "ends within"),
        ([record(TO_NAME, A, bytes(4))[:5]], "ends within"),
        ([b"\x3fabc"], "ends within"),
        ([b"\xc0"], "ends within"),
        ([b""], "ends within"),
    ],
)
def test_what_is_malformed_is_refused_with_its_reason(answers: list[bytes], why: str):
    assert why in refusal(message(answers))


def test_an_soa_record_that_is_too_short_is_refused():
    assert "SOA" in refusal(message([], [record(TO_NAME, SOA, bytes(21))]))


@given(st.binary(max_size=200), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_no_octets_raise_anything_else(data: bytes, answers: int, authorities: int, more: int):
    wire = struct.pack("!HHHHHH", 7, 0x8180, 1, answers, authorities, more) + ASKED.section + data
    with suppress(BadReply):
        read(wire, ASKED)


def test_the_first_soa_record_counts_though_it_says_zero():
    reply = dns.message.make_response(QUERY)
    for owner, ttl in (("b.evil.test.", 0), ("a.evil.test.", 1)):
        reply.authority.append(dns.rrset.from_text(owner, ttl, "IN", "SOA", f"ns.test. root.test. 1 2 3 4 {ttl}"))
    assert read(reply.to_wire(), ASKED)[1] == DnsAnswer((), 0)


# --- the other reader ------------------------------------------------------------------------------------------------
NAMES = st.sampled_from(["a.evil.test.", "b.evil.test.", "c.test.", "d.c.test.", "x.", "A.EVIL.test."])
ADDRESSES = st.integers(1, 9).map(lambda n: f"192.0.2.{n}")
RECORDS = st.one_of(
    st.tuples(NAMES, st.just("A"), ADDRESSES),
    st.tuples(NAMES, st.just("CNAME"), NAMES),
    st.tuples(NAMES, st.just("AAAA"), st.just("2001:db8::1")),
    st.tuples(NAMES, st.just("NS"), NAMES),
    st.tuples(NAMES, st.just("TXT"), st.just('"text"')),
    st.tuples(NAMES, st.just("SOA"), st.integers(0, 99).map(lambda n: f"ns.test. root.test. 1 2 3 4 {n}")),
)
SECTION = st.lists(st.tuples(RECORDS, st.integers(0, 3600)), max_size=8)


def as_dnspython_reads_it(wire: bytes) -> DnsAnswer | None:
    """None: it refuses."""
    reply = dns.message.from_wire(wire, ignore_trailing=True)
    soa = next((rrset for rrset in reply.authority if rrset.rdtype is dns.rdatatype.SOA), None)
    negative_s = 0.0 if soa is None else float(min(soa.ttl, cast(Any, soa[0]).minimum))
    if reply.rcode() is dns.rcode.NXDOMAIN:
        return DnsAnswer((), negative_s, is_nxdomain=True)
    name, ttl = NAME, math.inf
    through: list[str] = []
    for _ in range(MAX_LINKS + 1):
        found = reply.get_rrset(reply.answer, name, dns.rdataclass.IN, dns.rdatatype.A)
        if found is not None:
            addresses = tuple(ip_address(cast(Any, one).address) for one in found)
            return DnsAnswer(addresses, min(ttl, found.ttl), through=tuple(through))
        link = reply.get_rrset(reply.answer, name, dns.rdataclass.IN, dns.rdatatype.CNAME)
        if link is None:
            return DnsAnswer((), negative_s)
        name, ttl = cast(Any, link[0]).target, min(ttl, link.ttl)
        through.append(name.to_text(omit_final_dot=True).lower())
    return None


@settings(max_examples=examples(300), deadline=None)
@given(SECTION, SECTION, st.sampled_from([0, 3]))
def test_both_readers_agree(answers: list[Any], authorities: list[Any], code: int):
    reply = dns.message.make_response(QUERY)
    reply.set_rcode(dns.rcode.Rcode(code))
    owners: dict[str, set[str]] = {}
    for section, records in ((reply.answer, answers), (reply.authority, authorities)):
        for (owner, kind, data), ttl in records:
            kinds = owners.setdefault(owner.lower(), set())
            if kind in ("CNAME", "SOA") and kind in kinds:
                continue  # of several, each reader may take another
            kinds.add(kind)
            section.append(dns.rrset.from_text(owner, ttl, "IN", kind, data))
    wire = reply.to_wire()
    try:
        ours: DnsAnswer | None = read(wire, ASKED)[1]
    except BadReply:
        ours = None
    assert ours == as_dnspython_reads_it(wire)


# ---- queries

LABEL = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_", min_size=1, max_size=63)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(LABEL, min_size=1, max_size=3), st.sampled_from(["A", "AAAA", "PTR"]), st.booleans(), st.booleans())
def test_a_query_is_the_one_that_dnspython_writes(labels: list[str], kind: str, asks_authentic: bool, is_padded: bool):
    name = dns.name.Name([*(label.encode() for label in labels), b""])
    theirs = dns.message.make_query(name, kind, use_edns=0, payload=1232, pad=128 if is_padded else 0)
    if asks_authentic:
        theirs.flags |= dns.flags.AD
    wire, number = encode_name(".".join(labels)), dns.rdatatype.from_text(kind)
    ours = write_query(wire, number, theirs.id, asks_authentic=asks_authentic, block=128 if is_padded else 0)
    assert (ours.wire, ours.name, ours.kind) == (theirs.to_wire(), name.to_wire(), number)


@pytest.mark.parametrize("host", ["", "a..b", ".a", "a.", "a" * 64, ".".join(["a" * 63] * 4), "ä.test"])
def test_what_dns_cannot_carry_is_no_name(host: str):
    with pytest.raises(ValueError):
        encode_name(host)


@pytest.mark.parametrize("code", [*range(11), 16, 23])
def test_codes_have_the_names_that_dnspython_has(code: int):
    assert code_name(code) == dns.rcode.to_text(dns.rcode.Rcode(code))


def test_a_code_without_a_name_is_its_number():
    assert code_name(4000) == "4000"
