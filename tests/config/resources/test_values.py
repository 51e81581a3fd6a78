"""Value types: what is taken, what is refused, and what the remedy says."""

from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from egressproxy.config.resources import hostnames, values
from egressproxy.config.resources.values import Duration, RefusedValue


def read(kind: Any, value: object) -> Any:
    return TypeAdapter(kind).validate_python(value)


def refused(kind: Any, value: object) -> RefusedValue:
    with pytest.raises(ValidationError) as caught:
        read(kind, value)
    error = caught.value.errors()[0].get("ctx", {}).get("error")
    assert isinstance(error, RefusedValue)
    return error


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("5s", 5), ("500ms", 0.5), ("1m", 60), ("1h30m", 5400), ("1h1m1s1ms", 3661.001), ("99999h", 359996400)],
)
def test_a_duration_is_seconds(text: str, seconds: float) -> None:
    duration = read(Duration, text)
    assert duration.seconds == pytest.approx(seconds)
    assert str(duration) == text


@pytest.mark.parametrize(
    "value", ["", "5", "-1s", "1.5s", "5 s", "1d", "1h1h1h1h1h", "100000s", 5, True, None, "5S", "s"]
)
def test_what_is_no_duration_is_refused(value: object) -> None:
    assert refused(Duration, value).remedy


@given(st.lists(st.tuples(st.integers(0, 99999), st.sampled_from(["h", "m", "s", "ms"])), min_size=1, max_size=4))
def test_a_duration_is_the_sum_of_its_parts(parts: list[tuple[int, str]]) -> None:
    units = {"h": 3600, "m": 60, "s": 1, "ms": 0.001}
    text = "".join(f"{number}{unit}" for number, unit in parts)
    assert read(Duration, text).seconds == pytest.approx(sum(number * units[unit] for number, unit in parts))


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("192.0.2.1", "192.0.2.1/32"),
        ("2001:db8::/32", "2001:db8::/32"),
        ("::1", "::1/128"),
        ("0.0.0.0/0", "0.0.0.0/0"),
    ],
)
def test_a_network_is_read(text: str, network: str) -> None:
    assert read(values.Cidr, text) == ip_network(network)


@pytest.mark.parametrize(
    "value",
    [
        "10.0.0.0/33",
        "10.0.0.0/",
        "10.0.0.1/8",
        "10.0.0.0/255.0.0.0",
        "10/8",
        "010.0.0.0/8",
        "::/129",
        "::1/64",
        "a",
        "",
        10,
        None,
        True,
    ],
)
def test_what_is_no_network_is_refused(value: object) -> None:
    assert refused(values.Cidr, value).remedy


@given(st.integers(0, 2**32 - 1), st.integers(0, 32))
def test_host_bits_are_refused_and_the_remedy_is_the_network(number: int, prefix: int) -> None:
    network = ip_network((number, prefix), strict=False)
    text = f"{ip_network(number).network_address}/{prefix}"
    if int(network.network_address) == number:
        assert read(values.Cidr, text) == network
    else:
        assert f"write {network}" in refused(values.Cidr, text).remedy


@pytest.mark.parametrize(
    "value",
    [
        "192.0.2.1",
        "192.0.2.1:53",
        "[2001:db8::1]:53",
        "2001:db8::1",
        "[::1]",
        "tls://192.0.2.1",
        "tls://192.0.2.1:853#dns.example",
        "https://dns.example/dns-query",
        "https://192.0.2.1/dns-query#dns.example",
        "https://[2001:db8::1]:8443/a/b?c=d#dns.example",
        "https://192.0.2.1",
        "udp://192.0.2.1:5353",
    ],
)
def test_a_dns_server_is_read(value: str) -> None:
    assert read(values.ServerAddress, value) == value


@pytest.mark.parametrize(
    "value",
    [
        "dns.google",
        "192.0.2.1:0",
        "192.0.2.1:99999",
        "192.0.2.1:",
        "quic://192.0.2.1",
        "https://",
        "https:///dns-query",
        "https://user@192.0.2.1/dns-query",
        "https://192.0.2.1:x/dns-query",
        "https://192.0.2.1/dns-query{?dns}",
        "https://192.0.2.1/a b",
        "https://192.0.2.1/a#b c",
        "",
        "[::1]:x",
        "tls://dns.example",
    ],
)
def test_what_is_no_dns_server_is_refused(value: str) -> None:
    assert refused(values.ServerAddress, value).remedy


@pytest.mark.parametrize("value", [True, "80", 80.0, 0, 65536, -1, None])
def test_what_is_no_port_is_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        read(values.Port, value)


@pytest.mark.parametrize("value", ["", "a b", "a:b", "ä", "a\r\n", "a" * 257])
def test_what_is_no_header_name_is_refused(value: str) -> None:
    assert refused(values.HeaderName, value).remedy


@given(st.text(max_size=40))
def test_no_text_makes_a_hostname_fail_otherwise_than_by_refusing(text: str) -> None:
    for kind in (
        hostnames.Hostname,
        hostnames.DestinationHostname,
        hostnames.ExternalHostname,
        values.ServerAddress,
        values.Cidr,
        Duration,
    ):
        try:
            read(kind, text)
        except ValidationError as error:
            assert isinstance(error.errors()[0]["ctx"]["error"], RefusedValue)  # noqa: PT017


@pytest.mark.parametrize(("text", "value"), [("dG9r", b"tok"), ("dG9r\nCg==\n", b"tok\n"), ("", b"")])
def test_a_secret_is_decoded(text: str, value: bytes) -> None:
    assert read(values.SecretValue, text).reveal() == value


@pytest.mark.parametrize("value", ["not base64!", "dG9", 5, None])
def test_what_is_no_base64_is_refused_without_showing_it(value: object) -> None:
    error = refused(values.SecretValue, value)
    assert str(value) not in error.message + error.remedy or value is None


@pytest.mark.parametrize("value", ["2024-01-31T12:00:00Z", "2024-01-31T12:00:00.5+01:00"])
def test_a_timestamp_stays_text(value: str) -> None:
    assert read(values.Timestamp, value) == value


def test_what_is_no_timestamp_is_refused() -> None:
    assert "RFC 3339" in refused(values.Timestamp, "yesterday").remedy
