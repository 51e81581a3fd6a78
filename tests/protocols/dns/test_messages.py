"""Queries as dnspython writes them are read, its parser reads the responses, and no bytes are more than an error."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Any

import dns.edns
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdatatype
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.protocols.dns.messages import (
    BLOCKED,
    FORMERR,
    MAX_ADDRESSES,
    MAX_TEXT_UDP,
    MOST_UDP,
    NOERROR,
    NOTIMP,
    REFUSED,
    A,
    BadQuery,
    DnsQuery,
    ExtendedError,
    read_query,
    truncated,
    write_response,
)
from tests.support.properties import examples

MANY = tuple(IPv6Address(number) for number in range(1, 33))


def asked(name: str = "api.example.com", kind: str = "A", **more: Any) -> dns.message.QueryMessage:
    return dns.message.make_query(name, kind, id=7, **more)


def query(name: str = "api.example.com", kind: str = "A", **more: Any) -> DnsQuery:
    return read_query(asked(name, kind, **more).to_wire())


def read(response: bytes) -> dns.message.Message:
    return dns.message.from_wire(response)


def code_of(wire: bytes) -> int | None:
    with pytest.raises(BadQuery) as caught:
        read_query(wire)
    if caught.value.response:
        assert read(caught.value.response).rcode() == caught.value.code
    return caught.value.code


def test_a_query_is_read():
    found = query("API.Example.COM", "AAAA", use_edns=0, payload=4096, want_dnssec=True)
    assert (found.host, found.type_name, found.payload, found.wants_dnssec) == ("api.example.com", "AAAA", 4096, True)
    plain = query()
    assert (plain.has_edns, plain.is_internet, plain.identifier) == (False, True, 7)
    assert query(use_edns=0, payload=100).payload == 512
    assert (
        query(".", "NS").host
        == query("a\\.b.example").host
        == query("é.example".encode("idna").decode() + " x").host
        == ""
    )
    assert query(kind="TYPE4711").type_name == "TYPE4711"


def test_a_response_has_the_addresses_of_the_asked_family_and_the_letters_of_the_question():
    addresses = (IPv4Address("192.0.2.1"), IPv6Address("2001:db8::1"))
    for kind, text in (("A", "192.0.2.1"), ("AAAA", "2001:db8::1")):
        made = read(write_response(query("aPi.eXample", kind), NOERROR, addresses=addresses, ttl_s=60, is_tcp=False))
        (records,) = made.answer
        assert [str(each) for each in records] == [text]
        assert (records.ttl, records.name.to_text(), made.question[0].name.to_text()) == (
            60,
            "aPi.eXample.",
            "aPi.eXample.",
        )
        assert made.id == 7
        assert made.flags & (dns.flags.QR | dns.flags.RA | dns.flags.RD | dns.flags.AA) == (
            dns.flags.QR | dns.flags.RA | dns.flags.RD
        )
    assert not read(write_response(query(kind="HTTPS"), NOERROR, addresses=addresses, is_tcp=False)).answer


def test_the_answer_to_any_is_minimal():
    (records,) = read(write_response(query(kind="ANY"), NOERROR, ttl_s=60, is_tcp=False)).answer
    assert records.to_text().endswith('HINFO "RFC8482" ""')
    assert not read(write_response(query(kind="ANY"), REFUSED, is_tcp=False)).answer


def test_why_is_told_to_a_client_with_edns_alone():
    told = ExtendedError(BLOCKED, "destination_denied: ask " + "ö" * 4000)
    made = read(write_response(query(use_edns=0), REFUSED, error=told, is_tcp=False))
    (option,) = made.options
    assert isinstance(option, dns.edns.EDEOption)
    assert (option.code, made.rcode(), made.payload) == (15, dns.rcode.REFUSED, MOST_UDP)
    assert option.text is not None
    assert told.text.startswith(option.text)
    assert MAX_TEXT_UDP - 2 < len(option.text.encode()) <= MAX_TEXT_UDP
    assert len(write_response(query(use_edns=0), REFUSED, error=told, is_tcp=True)) > 1024
    assert not read(write_response(query(), REFUSED, error=told, is_tcp=False)).opt


@pytest.mark.parametrize("edns", [{}, {"use_edns": 0, "payload": 65535}])
def test_no_response_over_udp_is_many_times_as_long_as_its_query(edns: dict[str, int]):
    """Whoever forges a source gains no more than that."""
    wire = asked("a.b", "AAAA", **edns).to_wire()
    found = read_query(wire)
    told = ExtendedError(BLOCKED, "x" * 4000)
    assert len(write_response(found, NOERROR, addresses=MANY, is_tcp=False)) < 12 * len(wire)
    assert len(write_response(found, REFUSED, error=told, is_tcp=False)) < 12 * len(wire)
    assert len(truncated(found)) <= len(wire)
    assert read(truncated(found)).flags & dns.flags.TC
    (records,) = read(write_response(found, NOERROR, addresses=MANY, is_tcp=True)).answer
    assert len(records) == MAX_ADDRESSES


@pytest.mark.parametrize("edns", [{}, {"use_edns": 0, "payload": 512}])
def test_what_every_client_takes_is_enough_for_each_response(edns: dict[str, int]):
    longest = ".".join(("a" * 63, "b" * 63, "c" * 63, "d" * 61))
    found = query(longest, "AAAA", **edns)
    told = ExtendedError(BLOCKED, "x" * 4000)
    for made in (
        write_response(found, NOERROR, addresses=MANY, is_tcp=False),
        write_response(found, REFUSED, error=told, is_tcp=False),
    ):
        assert len(made) <= 512
        assert not read(made).flags & dns.flags.TC


def test_other_messages_than_queries():
    wire = asked().to_wire()
    assert code_of(b"") is code_of(wire[:11]) is None
    assert code_of(write_response(read_query(wire), NOERROR, is_tcp=False)) is None, "answers are not answered"
    update = asked()
    update.set_opcode(dns.opcode.NOTIFY)
    assert code_of(update.to_wire()) == NOTIMP
    two = asked()
    two.question *= 2
    assert code_of(two.to_wire()) == FORMERR
    assert code_of(asked(use_edns=1).to_wire()) == dns.rcode.BADVERS
    with_answer = dns.message.make_response(asked())
    with_answer.flags = 0
    assert read_query(with_answer.to_wire()).kind == A, "without records it is a query"
    assert code_of(wire + bytes(1300)) == FORMERR


@pytest.mark.parametrize(
    "name",
    [b"\xc0\x0c", b"\x01a\xc0\x0c", b"\xc0\xff", b"\x40" + b"a" * 64 + b"\0", b"\x3fa", b"\x01a" * 128 + b"\0", b""],
    ids=["a loop", "a loop behind a label", "nowhere", "a label of 64", "cut", "a name of 257", "none"],
)
def test_a_name_that_breaks_the_rules_is_malformed(name: bytes):
    assert code_of(b"\0\7\1\0\0\1\0\0\0\0\0\0" + name + b"\0\1\0\1"[: 4 if name.endswith(b"\0") else 0]) == FORMERR


@pytest.mark.parametrize("at", range(12, 56))
def test_a_cut_query_is_malformed(at: int):
    wire = asked(use_edns=0, payload=1232, options=[dns.edns.GenericOption(10, b"cookie12")]).to_wire()
    assert len(wire) == 56
    assert code_of(wire[:at]) == FORMERR


@given(wire=st.binary(max_size=80), head=st.booleans())
@settings(max_examples=examples(300))
def test_any_bytes_are_a_query_or_an_error(wire: bytes, head: bool):
    if head:
        wire = b"\0\7\1\0\0\1\0\0\0\0\0\1" + wire
    try:
        response = write_response(read_query(wire), REFUSED, error=ExtendedError(BLOCKED, "x"), is_tcp=False)
    except BadQuery as bad:
        response = bad.response
    assert not response or (response[:2] == wire[:2] and len(response) <= len(wire) + 32)
