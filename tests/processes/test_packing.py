"""A configuration survives the way through a pipe, and nothing else comes out of one."""

from __future__ import annotations

import io
import pickle
import pickletools
import sys
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.filters.builtin import BUILTIN, builtin_type
from egressproxy.filters.header_policy import HeaderEdits, HeaderPolicy, HeaderPolicyConfig, HeaderValue
from egressproxy.ir.backend import BackendIR, BackendTlsIR, Destination, EndpointAddress
from egressproxy.ir.gateway import (
    CertificateIR,
    ConfigIR,
    ListenerIR,
    ListenerProtocol,
    ListenerTlsIR,
    SubjectIR,
    VariantIR,
)
from egressproxy.ir.policy import (
    AddressAllowance,
    AddressBound,
    AddressDenial,
    AddressesIR,
    DestinationRule,
    DestinationsIR,
    DnsIR,
    ExtensionIR,
    Mode,
    PolicyIR,
)
from egressproxy.ir.route import (
    AuthProtocol,
    ExternalAuthIR,
    HttpRouteIR,
    HttpRuleIR,
    MatchIR,
    MirrorIR,
    StreamRouteIR,
    ValueMatch,
    WeightedBackend,
)
from egressproxy.model.fields import Fields
from egressproxy.model.secret import SecretBytes
from egressproxy.model.work import at_once
from egressproxy.processes import packing
from egressproxy.processes.packing import ROUTES, PackingError, pack, unpacking

POLICY = PolicyIR(
    Mode.REPORT,
    DestinationsIR(((DestinationRule(("a.test",), cidrs=(ip_network("10.0.0.0/8"), ip_network("fd00::/8"))),),)),
    AddressesIR(
        ((AddressAllowance((ip_network("127.0.0.0/8"),)),),),
        deny=(AddressDenial((ip_network("10.0.0.0/8"),), (443,)),),
        only=(AddressBound((ip_network("0.0.0.0/0"),)),),
    ),
    DnsIR(hosts=(("a.test", (ip_address("10.0.0.1"), ip_address("::1"))),)),
)
BACKEND = BackendIR(
    "ns/b",
    Destination.IP,
    endpoints=(EndpointAddress(ip_address("10.0.0.1"), 443),),
    tls=BackendTlsIR(client_certificate="PEM", client_key=SecretBytes(b"key of a client")),
    extensions=(ExtensionIR("i", "t", "connect", secrets=(("name/key", SecretBytes(b"sesame")),)),),
)
MATCH = MatchIR("/a", headers=(ValueMatch("x", "1"),))
AUTH = ExternalAuthIR(ExtensionIR("ExternalAuth", "t", "request-headers"), AuthProtocol.GRPC, WeightedBackend(BACKEND))
WEIGHTED = WeightedBackend(BACKEND, policy=POLICY)
MIRRORS = (MirrorIR(WEIGHTED, BACKEND.extensions, 1, 3),)
RULE = HttpRuleIR((MATCH,), (WEIGHTED,), POLICY, auths=(AUTH,), mirrors=MIRRORS)
ROUTE = HttpRouteIR("ns/r", ("h.test",), (RULE,))
LISTENER = ListenerIR(
    "ns/gw",
    "all",
    ("127.0.0.1", "::1"),
    443,
    ListenerProtocol.HTTPS,
    tls=ListenerTlsIR(certificates=(CertificateIR("c", "PEM", SecretBytes(b"key of a listener"), ("a.test",)),)),
    http_routes=tuple(replace(ROUTE, name=f"ns/r{number}") for number in range(3 * ROUTES + 1)),
    tls_routes=(StreamRouteIR("ns/t", (), RULE.backends),),
    tcp_routes=(StreamRouteIR("ns/u", (), RULE.backends, kind="TCPRoute"),),
    policy=POLICY,
)
CONFIG = ConfigIR((LISTENER, replace(LISTENER, name="other", http_routes=())), 7)


def test_a_configuration_comes_back_as_it_was_with_its_secrets():
    back = at_once(unpacking(pack(CONFIG)))
    assert back == CONFIG
    key = back.listeners[0].http_routes[0].rules[0].backends[0].backend.tls.client_key
    assert key.reveal() == b"key of a client"


def test_what_was_shared_is_shared_again():
    first, *_, last = at_once(unpacking(pack(CONFIG))).listeners[0].http_routes
    assert first.rules[0].policy is last.rules[0].policy
    assert first.rules[0].backends is last.rules[0].backends


def test_variants_come_along_and_share_what_the_listener_has():
    variant = replace(LISTENER, name="theirs")
    subjects = (("a/p", (SubjectIR("a", "x", "g", ("c", "v")),)),)
    whole = replace(LISTENER, subjects=subjects, variants=(VariantIR(frozenset({"a/p"}), variant),))
    back = at_once(unpacking(pack(ConfigIR((whole, LISTENER), 3))))
    assert back == ConfigIR((whole, LISTENER), 3)
    ours, theirs = back.listeners[0], back.listeners[0].variants[0].listener
    assert ours.http_routes[0].rules[0].policy is theirs.http_routes[0].rules[0].policy


def test_reading_pauses_after_every_few_routes():
    assert len(list(unpacking(pack(CONFIG)))) >= len(LISTENER.http_routes) / ROUTES


def test_the_settings_of_a_filter_come_along():
    settings = HeaderPolicyConfig(request=HeaderEdits(set=(HeaderValue("X-A", "1"),)))
    extension = ExtensionIR("h", "egressproxy.io/HeaderPolicy:v1", "request-headers", settings=settings)
    back = at_once(unpacking(pack(ConfigIR((replace(LISTENER, extensions=(extension, extension)),)))))
    first, second = back.listeners[0].extensions
    assert first.settings == settings
    assert first is second


def by_name(member: Any, _protocol: int) -> tuple[Any, ...]:
    """What an enum is pickled as by CPython 3.11.2: a call of `getattr`."""
    return getattr, (type(member), member.name)


@pytest.mark.parametrize("name", BUILTIN)
def test_the_settings_of_every_built_in_type_may_come_along(name: str):
    kind = builtin_type(name)
    assert kind is not None
    assert packing._find(kind.config_model.__module__, kind.config_model.__name__) is kind.config_model


def test_enums_come_back_whatever_this_python_writes_of_one(monkeypatch: pytest.MonkeyPatch):
    for kind in (ListenerProtocol, Mode, AuthProtocol, Destination):
        monkeypatch.setattr(kind, "__reduce_ex__", by_name)
    assert at_once(unpacking(pack(CONFIG))) == CONFIG


def test_only_specs_and_addresses_are_named_in_it():
    """What is read would be refused otherwise; so no version of Python may write more."""
    file = io.BytesIO(pack(CONFIG))
    texts: set[Any] = set()
    while file.tell() < len(file.getvalue()):  # pickles in a row
        texts |= {argument for _, argument, _ in pickletools.genops(file) if isinstance(argument, str)}
    modules = {text for text in texts if text.split(".")[0] in sys.stdlib_module_names | {"egressproxy"}}
    assert modules >= {"egressproxy.ir.gateway", "ipaddress"}
    assert not {module for module in modules if not module.startswith("egressproxy.")} - {"ipaddress"}


def test_nothing_but_specs_is_made():
    class Other:
        pass

    for what in (print, getattr, Other, PolicyIR.__init__, pickle.Unpickler, HeaderPolicy, Fields.of):
        with pytest.raises((PackingError, pickle.PicklingError, AttributeError)):
            at_once(unpacking(pickle.dumps(what)))


def test_what_a_module_of_specs_has_imported_is_not_called():
    """`dataclass` executes text that it makes of the names of fields."""
    for name in ("dataclass", "Enum", "__loader__", "__builtins__", "annotations"):
        octets = b"\x80\x04\x8c\x17egressproxy.spec.policy\x8c" + bytes([len(name)]) + name.encode() + b"\x93."
        with pytest.raises(PackingError, match="UnpicklingError"):
            at_once(unpacking(octets))


def test_secrets_are_pickled_by_nobody_else():
    with pytest.raises(TypeError):
        pickle.dumps(CONFIG)


def test_a_part_of_it_is_refused():
    packed = pack(CONFIG)
    for length in (0, 1, len(packed) // 2, len(packed) - 1):
        with pytest.raises(PackingError):
            at_once(unpacking(packed[:length]))


@given(st.binary(max_size=200))
def test_anything_else_is_refused_without_a_trace_of_it(data: bytes):
    with pytest.raises(PackingError, match="no packed configuration"):
        at_once(unpacking(data))
