"""What is served without any configuration."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from egressproxy.config.builtin import open_proxy
from egressproxy.errors import Denied
from egressproxy.ir.gateway import ListenerProtocol
from egressproxy.ir.policy import Mode
from egressproxy.upstream.address_policy import AddressPolicy


def test_without_configuration_there_is_an_open_proxy_on_loopback_alone():
    (found,) = open_proxy(3128).listeners
    assert (found.gateway, found.name, found.port) == ("default/egressproxy", "forward", 3128)
    assert found.addresses == ("127.0.0.1",)
    assert found.protocol is ListenerProtocol.FORWARD_PROXY
    assert found.policy.mode is Mode.OPEN
    assert found.default_backend is not None
    assert found.default_backend.policy.mode is Mode.OPEN


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254"])
def test_without_configuration_a_refusal_names_no_policy_that_could_be_changed(address: str):
    (found,) = open_proxy(3128).listeners
    with pytest.raises(Denied) as refused:
        AddressPolicy(found.policy.addresses).check("a.example", (ip_address(address),), 443)
    assert "EgressPolicy" not in refused.value.remedy
    assert refused.value.remedy
