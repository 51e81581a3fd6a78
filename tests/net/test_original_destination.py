"""Where a redirected connection was going, and whose a socket is, as the kernel of this machine says."""

from __future__ import annotations

import os
import socket

import pytest

from egressproxy.net.original_destination import NotRedirected, original_destination, owner_of
from tests.support.own_network import can_have_own_network, load_rules, own_network

RULES = """
table inet egress {
  chain output {
    type nat hook output priority -100; policy accept;
    tcp dport 443 redirect to :15901
  }
}
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connection_that_was_not_redirected_has_no_other_destination(host: str):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.create_server((host, 0), family=family) as listening,
        socket.create_connection(listening.getsockname()[:2]),
    ):
        accepted, _ = listening.accept()
        with accepted, pytest.raises(NotRedirected):
            original_destination(accepted)


@pytest.mark.skipif(not can_have_own_network(), reason="needs root and nftables")
@pytest.mark.parametrize(("bound", "dialled"), [("0.0.0.0", "10.9.0.1"), ("::", "fd09::9")])
def test_the_kernel_tells_where_a_redirected_one_was_going(bound: str, dialled: str):
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    with own_network("10.9.0.9/24", "fd09::9/64"), socket.create_server((bound, 15901), family=family) as listening:
        load_rules(RULES)
        with socket.create_connection((dialled, 443)) as client:
            accepted, _ = listening.accept()
            with accepted:
                found = original_destination(accepted)
                assert (found.host, found.port) == (dialled, 443)
                assert owner_of(client.getsockname()[:2], (dialled, 443)) == os.getuid()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_whose_socket_it_is(host: str):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.create_server((host, 0), family=family) as listening,
        socket.create_connection(listening.getsockname()[:2]) as client,
    ):
        local, remote = client.getsockname()[:2], listening.getsockname()[:2]
        assert owner_of(local, remote) == os.getuid()
        assert owner_of(local, (remote[0], 1)) is None
