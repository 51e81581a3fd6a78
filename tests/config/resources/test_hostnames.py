"""Hostnames: what is taken, what is refused, and what the remedy says."""

import pytest

from egressproxy.config.resources import hostnames
from tests.config.resources.test_values import read, refused


@pytest.mark.parametrize("value", ["a.example.com", "*.example.com", "localhost", "a-b.c1"])
def test_a_hostname_is_precise_or_a_wildcard(value: str) -> None:
    assert read(hostnames.Hostname, value) == value


@pytest.mark.parametrize(
    "value", ["*", "*.", "*a.test", "a.*.test", "A.test", "a.test:443", "a_b.test", "-a.test", "a..b", "a.test.", ""]
)
def test_what_is_no_hostname_is_refused(value: str) -> None:
    assert refused(hostnames.Hostname, value).remedy


def test_a_hostname_that_is_a_url_is_told_all_that_does_not_belong() -> None:
    error = refused(hostnames.Hostname, "https://API.test:443/v1")
    assert error.message == "a hostname has no scheme, port or path"
    assert error.remedy == "write api.test alone; name the port in its own field"


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ("API.Example.com", "api.example.com"),
        ("*.Example.com", "*.example.com"),
        ("a.test.", "a.test"),
        ("_srv.a.test", "_srv.a.test"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ],
)
def test_a_destination_hostname_is_normalised(written: str, read_as: str) -> None:
    assert read(hostnames.DestinationHostname, written) == read_as


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ("*", "mode: Open"),
        ("*test", "write *.test"),
        ("d*.test", "write *.test"),
        ("*.*.test", "write *.test"),
        ("*.a*", "*.example.com"),
        ("10.0.0.1", "cidrs"),
        ("[::1]", "cidrs"),
        ("::1", "cidrs"),
        ("010.1", "DNS name"),
        ("0x7f.1", "DNS name"),
        ("10.0.0.1:443", "cidrs"),
        ("[::1]:443", "cidrs"),
        ("a.test:443", "write a.test alone; ports stand under ports"),
        ("*.a.test:443", "write *.a.test alone; ports stand under ports"),
        ("https://A.test", "write a.test alone"),
        ("https://a.test:8443/v1", "write a.test alone; ports"),
        ("a.test/v1", "write a.test alone"),
        ("http://a:b@c", "DNS name"),
        ("a b", "DNS name"),
        ("bücher.example", "xn--"),
        ("", "DNS name"),
        ("*.", "*.example.com"),
    ],
)
def test_what_is_no_destination_hostname_is_refused(value: str, remedy: str) -> None:
    assert remedy in refused(hostnames.DestinationHostname, value).remedy


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ("10.0.0.1", "type Ip"),
        ("::1", "type Ip"),
        ("[::1]", "type Ip"),
        ("db.default.svc.cluster.local", "type Service"),
        ("DB.svc.CLUSTER.LOCAL.", "type Service"),
        ("*.example.com", "Dynamic"),
    ],
)
def test_what_is_no_external_hostname_is_refused(value: str, remedy: str) -> None:
    assert remedy in refused(hostnames.ExternalHostname, value).remedy
