"""What is served without any configuration."""

from __future__ import annotations

from egressproxy.config.builtin import open_proxy
from egressproxy.ir.gateway import ListenerProtocol
from egressproxy.ir.policy import Mode


def test_without_configuration_there_is_an_open_proxy_on_loopback_alone():
    (found,) = open_proxy(3128).listeners
    assert (found.gateway, found.name, found.port) == ("default/egressproxy", "forward", 3128)
    assert found.addresses == ("127.0.0.1",)
    assert found.protocol is ListenerProtocol.FORWARD_PROXY
    assert found.policy.mode is Mode.OPEN
    assert found.default_backend is not None
    assert found.default_backend.policy.mode is Mode.OPEN
