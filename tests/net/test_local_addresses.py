from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from ipaddress import ip_address

import pytest

from egressproxy.net import local_addresses
from egressproxy.net.local_addresses import is_local
from tests.support.waiting import WAIT_S

LOCAL = ("127.0.0.1", "127.200.3.4", "::1")
ELSEWHERE = ("198.51.100.7", "2001:db8::7", "224.0.0.1", "fe80::1")


@pytest.mark.parametrize("text", LOCAL)
def test_loopback_is_local(text: str):
    assert is_local(ip_address(text))


@pytest.mark.parametrize("text", ELSEWHERE)
def test_an_address_of_others_is_not_local(text: str):
    assert not is_local(ip_address(text))


def test_what_a_dial_sets_out_from_is_local():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.7", 9))
        except OSError:
            pytest.skip("this machine has no route to the internet")
        assert is_local(ip_address(probe.getsockname()[0]))


@pytest.mark.parametrize(("text", "known"), [*((t, True) for t in LOCAL), ("198.51.100.7", False)])
def test_without_netlink_a_bind_tells(text: str, known: bool, monkeypatch: pytest.MonkeyPatch):
    def refuse(address: object) -> bool:
        raise OSError(errno.EPERM, "no netlink here")

    monkeypatch.setattr(local_addresses, "_is_local_route", refuse)
    assert is_local(ip_address(text)) is known


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_where_nothing_can_be_asked_every_address_counts_as_ours(code: int, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> socket.socket:
        raise OSError(code, "no more of these")

    monkeypatch.setattr(local_addresses.socket, "socket", refuse)
    assert is_local(ip_address("198.51.100.7"))


NAMESPACE = """
set -e
ip link set lo up
ip link add a0 type veth peer name b0
ip addr add 10.77.0.5/24 dev a0
ip addr add 10.77.0.6/24 dev a0
ip addr add 2001:db8:77::5/64 dev a0 nodad
ip link set a0 up
ip link set b0 up
ip route add local 10.78.0.0/24 dev lo
ip route add unreachable 10.79.0.0/24
ip route add prohibit 10.80.0.0/24
echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind
exec "$0" -c 'import sys; from ipaddress import ip_address; from egressproxy.net.local_addresses import is_local
print(*[t for t in sys.argv[1:] if is_local(ip_address(t))])' "$@"
"""


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="a network namespace takes root, on Linux")
def test_secondary_addresses_and_whole_ranges_are_local_and_nonlocal_binds_mislead_nobody():
    own = ["10.77.0.5", "10.77.0.6", "2001:db8:77::5", "10.78.0.9"]
    others = ["10.77.0.7", "2001:db8:77::6", "10.79.0.1", "10.80.0.1", "198.51.100.7"]
    asked = ["unshare", "-n", "bash", "-c", NAMESPACE, sys.executable, *own, *others]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=WAIT_S, check=False)
    if told.returncode and "unshare" in told.stderr:
        pytest.skip(f"no network namespace: {told.stderr.strip()}")
    assert told.returncode == 0, told.stderr
    assert told.stdout.split() == own
