"""DNS messages: dnspython is the second opinion on what is written and read."""

from ipaddress import ip_address

import dns.exception
import dns.flags
import dns.message
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.upstream.dns_message import Kind, encode_name, encode_query, read_reply

NAME = encode_name("a.example")
QUERY = encode_query(4711, NAME, Kind.A)
LABEL = st.text("abcxyz0-_", min_size=1, max_size=63)
HOST = st.lists(LABEL, min_size=1, max_size=3).map(".".join)
TTL = st.integers(0, 2**31 - 1)
RECORDS = st.lists(
    st.one_of(
        st.tuples(HOST, TTL, st.just("A"), st.ip_addresses(v=4).map(str)),
        st.tuples(HOST, TTL, st.just("AAAA"), st.ip_addresses(v=6).map(str)),
        st.tuples(HOST, TTL, st.just("CNAME"), HOST.map(lambda host: host + ".")),
        st.tuples(HOST, TTL, st.just("TXT"), st.just('"v=1"')),
    ),
    max_size=5,
)


def reply(*records: tuple[str, int, str, str], authority: tuple[tuple[str, int, str, str], ...] = ()) -> bytes:
    made = dns.message.make_response(dns.message.from_wire(QUERY))
    made.answer = [dns.rrset.from_text(f"{host}.", ttl, "IN", kind, data) for host, ttl, kind, data in records]
    made.authority = [dns.rrset.from_text(f"{host}.", ttl, "IN", kind, data) for host, ttl, kind, data in authority]
    return made.to_wire()


def raw(answer: bytes, count: int = 1, flags: int = 0x8180) -> bytes:
    head = b"\x12\x67" + flags.to_bytes(2, "big") + b"\0\1" + count.to_bytes(2, "big") + bytes(4)
    return head + NAME + b"\0\1\0\1" + answer


@given(HOST, st.sampled_from([Kind.A, Kind.AAAA]), st.integers(0, 65535))
def test_a_query_says_what_is_asked_and_what_we_take(host: str, kind: Kind, number: int) -> None:
    read = dns.message.from_wire(encode_query(number, encode_name(host), kind))
    (question,) = read.question
    assert (read.id, question.name.to_text(), question.rdtype) == (number, host + ".", kind)
    assert (read.flags, read.edns, read.payload) == (dns.flags.RD, 0, 1232)


@pytest.mark.parametrize("host", ["", "a..b", ".a", "a.", "a" * 64, ".".join(["a" * 63] * 4), "ä.test"])
def test_what_is_no_name_is_refused(host: str) -> None:
    with pytest.raises(ValueError):
        encode_name(host)


@given(RECORDS)
def test_records_are_read_as_they_were_written(records: list[tuple[str, int, str, str]]) -> None:
    found = read_reply(reply(*records))
    assert found.answers(QUERY)
    expected = []
    for host, ttl_s, kind, data in records:
        if kind == "CNAME":
            expected.append((encode_name(host), Kind.CNAME, ttl_s, encode_name(data[:-1])))
        elif kind != "TXT":
            expected.append((encode_name(host), Kind[kind], ttl_s, ip_address(data).packed))
    assert list(found.answer) == expected


def test_the_last_number_of_a_soa_is_kept() -> None:
    soa = ("example", 300, "SOA", "ns.example. admin.example. 1 2 3 4 17")
    (found,) = read_reply(reply(authority=(soa,))).authority
    assert (found.kind, found.ttl_s, int.from_bytes(found.data, "big")) == (Kind.SOA, 300, 17)


@pytest.mark.parametrize(
    ("flags", "number", "fits"),
    [(0x8180, 4711, True), (0x8180, 4712, False), (0x0100, 4711, False), (0xA180, 4711, False)],
)
def test_an_answer_fits_its_query_alone(flags: int, number: int, fits: bool) -> None:
    message = number.to_bytes(2, "big") + raw(b"", 0, flags)[2:]
    assert read_reply(message).answers(QUERY) is fits
    assert not read_reply(message).answers(encode_query(number, NAME, Kind.AAAA))
    assert not read_reply(message).answers(encode_query(number, encode_name("b.example"), Kind.A))


@pytest.mark.parametrize(("code", "fits"), [(0, False), (2, True), (3, False), (5, True)])
def test_only_a_refusal_may_come_without_the_question(code: int, fits: bool) -> None:
    assert read_reply(b"\x12\x67\x80" + bytes((code,)) + bytes(8)).answers(QUERY) is fits


def test_the_case_of_letters_makes_no_difference() -> None:
    assert read_reply(raw(b"", 0).replace(b"example", b"eXamPLE")).answers(QUERY)


def test_the_upper_bits_of_the_code_count() -> None:
    opt = b"\0\0\x29\x04\xd0\x01\0\0\0\0\0"  # BADVERS is 16
    assert read_reply(raw(opt)).code == 16


def test_a_time_with_its_highest_bit_set_is_zero() -> None:
    (found,) = read_reply(raw(b"\xc0\x0c\0\1\0\1\xff\xff\xff\xff\0\4\1\2\3\4")).answer
    assert found.ttl_s == 0


def test_a_truncated_message_is_not_read_to_its_end() -> None:
    assert read_reply(raw(b"\xff", 9, 0x8380)).is_truncated


FAULTS = {
    "forwards": b"\xc0\xff\0\1\0\1\0\0\0\0\0\0",
    "itself": b"\xc0\x1b\0\1\0\1\0\0\0\0\0\0",
    "loop": b"\1a\xc0\x1b\0\1\0\1\0\0\0\0\0\0",
    "form of label": b"\x40\0\1\0\1\0\0\0\0\0\0",
    "long name": b"\x3f" + b"a" * 63 + (b"\x3f" + b"a" * 63) * 3 + b"\0\0\1\0\1\0\0\0\0\0\0",
    "short address": b"\xc0\x0c\0\1\0\1\0\0\0\0\0\3\1\2\3",
    "short AAAA": b"\xc0\x0c\0\x1c\0\1\0\0\0\0\0\4\1\2\3\4",
    "beyond the end": b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4\1\2\3",
    "CNAME with more": b"\xc0\x0c\0\5\0\1\0\0\0\0\0\3\xc0\x0c\0",
    "SOA without numbers": b"\xc0\x0c\0\6\0\1\0\0\0\0\0\2\0\0",
    "nothing": b"",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_malformed_record_is_refused(fault: str) -> None:
    with pytest.raises(ValueError):
        read_reply(raw(FAULTS[fault]))


def test_pointers_in_a_row_come_to_an_end() -> None:
    at = len(raw(b"")) + 12
    chain = b"".join((0xC000 | (at + 2 * i - 2 if i else 12)).to_bytes(2, "big") for i in range(200))
    record = b"\xc0\x0c\0\x10\0\1\0\0\0\0" + len(chain).to_bytes(2, "big") + chain
    last = (0xC000 | (at + 2 * 199)).to_bytes(2, "big") + b"\0\1\0\1\0\0\0\0\0\4\1\2\3\4"
    with pytest.raises(ValueError, match="too far"):
        read_reply(raw(record + last, 2))


@given(st.binary(max_size=300))
def test_anything_is_read_or_refused(data: bytes) -> None:
    for message in (data, raw(data, 3)):
        try:
            read_reply(message)
        except ValueError:
            continue


@given(RECORDS, st.data())
def test_a_damaged_message_is_read_as_others_read_it(
    records: list[tuple[str, int, str, str]], data: st.DataObject
) -> None:
    message = bytearray(reply(*records))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(12, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        theirs = dns.message.from_wire(bytes(message), ignore_trailing=True, one_rr_per_rrset=True)
        ours = read_reply(bytes(message))
    except (ValueError, dns.exception.DNSException):
        return
    expected = {
        (rrset.name.to_wire().lower(), record.address)
        for rrset in theirs.answer
        if rrset.rdclass == dns.rdataclass.IN and rrset.rdtype in (dns.rdatatype.A, dns.rdatatype.AAAA)
        for record in rrset
    }
    addresses = [record for record in ours.answer if record.kind in (Kind.A, Kind.AAAA)]
    assert {(record.name, str(ip_address(record.data))) for record in addresses} == expected
