from __future__ import annotations

import socket

from egressproxy.net.listening import bind, why_unusable


def test_an_address_of_this_machine_is_usable_though_ports_of_it_are_taken():
    with bind("127.0.0.1", 0):
        assert why_unusable("127.0.0.1") == ""
        assert why_unusable("0.0.0.0") == ""


def test_an_address_that_this_machine_does_not_have_is_not_and_why():
    assert why_unusable("192.0.2.1") == "cannot assign requested address"
    assert not socket.has_ipv6 or why_unusable("2001:db8::1")
