from base64 import b64encode

import pytest

from egressproxy.errors import Denied, Reason
from egressproxy.filters.credentials.config import CredentialInjectorConfig
from egressproxy.filters.credentials.placeholder_watch import (
    BodyWatch,
    PlaceholderWatch,
    PlaceholderWatches,
    pattern_of,
)
from egressproxy.filters.settings import SecretRef
from egressproxy.ir.policy import ExtensionIR
from egressproxy.telemetry.event_aggregator import EventAggregator
from tests.filters.credentials.kit import exchange, injector

MINE, OTHER = "sk-egress-mine-0123456789", "sk-egress-other-987654321"
KEY = "REAL-KEY-abcdef"
CONFIG = {"secretRef": {"name": "s", "key": "token"}, "placeholder": MINE}
SECRETS = {"s/token": KEY}


def made(**more):
    return injector({**CONFIG, **more}, SECRETS)


def head_of(filter_, *lines, target=b"/v1/x"):
    x = exchange(*lines, target=target)
    filter_.backend_request(x)
    return x.request


def refused(filter_, *lines, target=b"/v1/x"):
    x = exchange(*lines, target=target)
    with pytest.raises(Denied) as caught:
        filter_.backend_request(x)
    assert caught.value.status == 403
    assert MINE not in f"{caught.value.message} {caught.value.remedy} {caught.value.detail}"
    assert KEY.encode() not in x.request.fields.block + x.request.path
    return caught.value.reason


@pytest.mark.parametrize("value", [f"Bearer {MINE}", f"bearer {MINE}", f"BEARER  {MINE} "])
def test_a_placeholder_in_its_place_is_exchanged_for_the_key(value):
    request = head_of(made(), (b"authorization", value.encode().strip()), (b"x-a", b"b"))
    assert list(request.fields) == [(b"x-a", b"b"), (b"authorization", f"Bearer {KEY}".encode())]


def test_in_a_header_of_ones_own():
    assert head_of(made(header="X-Api-Key"), (b"X-Api-Key", MINE.encode())).fields.get(b"x-api-key") == KEY.encode()


@pytest.mark.parametrize("target", [f"/v1?key={MINE}", f"/v1?a=1&key={MINE}", "/v1?%6bey=" + MINE.replace("-", "%2D")])
def test_in_a_parameter(target):
    request = head_of(made(query="key"), target=target.encode())
    assert request.path.endswith(b"key=" + KEY.encode())
    assert MINE.encode() not in request.path


def test_as_the_password_of_basic():
    value = b"Basic " + b64encode(f"anybody:{MINE}".encode())
    request = head_of(made(basic={"username": "svc"}), (b"authorization", value))
    assert request.fields.get(b"authorization") == b"Basic " + b64encode(f"svc:{KEY}".encode())


@pytest.mark.parametrize(
    ("lines", "target"),
    [
        ([(b"x-api-key", MINE.encode())], b"/"),
        ([(b"authorization", b"Bearer theirs"), (b"cookie", f"k={MINE}".encode())], b"/"),
        ([(b"authorization", f"Bearer {MINE}".encode()), (b"x-debug", MINE.encode())], b"/"),
        ([(b"authorization", f"Bearer {MINE}".encode())] * 2, b"/"),
        ([(b"authorization", f"Basic {MINE}".encode())], b"/"),
        ([(b"authorization", f"Bearer x{MINE}".encode())], b"/"),
        ([(b"authorization", f"Bearer {MINE}x".encode())], b"/"),
        ([(b"authorization", f"Bearer {MINE}, Bearer x".encode())], b"/"),
        ([(b"authorization", b"Basic " + b64encode(f"u:{MINE}".encode()))], b"/"),
        ([(b"authorization", f"Bearer {MINE}".encode())], f"/{MINE}".encode()),
        ([(b"authorization", f"Bearer {MINE}".encode())], f"/x?key={MINE}".encode()),
        ([(b"authorization", f"Bearer {MINE}".encode())], f"/x?key={MINE}".replace("-", "%2d").encode()),
        ([(b"x-authorization", f"Bearer {MINE}".encode())], b"/"),
        ([(b"cookie", f"k={MINE}".replace("k-e", "k%2De").encode())], b"/"),
        ([(b"authorization", f"Bearer {MINE}".encode()), (b"x-a", MINE.replace("s", "%73").encode())], b"/x"),
    ],
)
@pytest.mark.parametrize("more", [{}, {"require": "placeholder"}])
def test_anywhere_else_it_ends_the_request(lines, target, more):
    assert refused(made(**more), *lines, target=target) is Reason.PLACEHOLDER_MISPLACED


@pytest.mark.parametrize("lines", [[], [(b"authorization", f"Bearer {MINE}".encode())]], ids=["alone", "in its place"])
@pytest.mark.parametrize("written", [MINE, MINE.replace("-", "%2d"), b64encode(f"a{MINE}".encode()).decode()])
def test_in_what_is_written_anew_for_the_backend_it_ends_the_request(written, lines):
    for name in ("via", "upgrade", "host"):
        x = exchange(*lines)
        if name == "host":
            x.upstream_host = f"{written}.example".encode()
        else:
            setattr(x.request, name, f"1.1 {written}".encode())
        with pytest.raises(Denied) as caught:
            made().backend_request(x)
        assert caught.value.reason is Reason.PLACEHOLDER_MISPLACED


def test_in_the_field_of_another_place_it_ends_the_request():
    bearer = (b"authorization", f"Bearer {MINE}".encode())
    assert refused(made(query="key"), bearer) is Reason.PLACEHOLDER_MISPLACED
    assert refused(made(basic={}), bearer) is Reason.PLACEHOLDER_MISPLACED
    twice = f"/x?key={MINE}&key={MINE}".encode()
    assert refused(made(query="key"), target=twice) is Reason.PLACEHOLDER_MISPLACED


def test_without_it_nothing_is_injected():
    theirs = (b"authorization", b"Bearer their-own")
    assert list(head_of(made(), theirs).fields) == [theirs]
    assert list(head_of(made()).fields) == []


@pytest.mark.parametrize("lines", [[], [(b"authorization", b"Bearer foreign")], [(b"x-api-key", b"foreign")]])
def test_a_foreign_key_is_refused_where_the_placeholder_is_required(lines):
    assert refused(made(require="placeholder"), *lines) is Reason.PLACEHOLDER_REQUIRED


def test_what_it_is_bound_to_holds_too():
    bound = made(bind={"hosts": ["other.example"]})
    assert refused(bound, (b"authorization", f"Bearer {MINE}".encode())) is Reason.CREDENTIAL_NOT_BOUND


@pytest.mark.parametrize(
    "config",
    [
        {"placeholder": "short"},
        {"placeholder": "with blanks in it, which is wrong"},
        {"placeholder": "", "require": "placeholder"},
        {"placeholder": "", "placeholderBodyBytes": 1},
        {"placeholder": "", "scrubAs": "Placeholder"},
        {"require": "something"},
    ],
)
def test_a_config_that_cannot_be_meant_is_refused(config):
    with pytest.raises(ValueError, match="config"):
        injector({**CONFIG, **config}, SECRETS)


def scrubbed(filter_, pieces):
    x = exchange()
    return b"".join(filter_.response_body(x, piece, n == len(pieces) - 1) for n, piece in enumerate(pieces))


@pytest.mark.parametrize("cut", range(1, len(KEY)))
def test_a_key_that_comes_back_becomes_the_placeholder_however_it_is_cut(cut):
    body = f'{{"key": "{KEY}", "b": "{b64encode(b"u:" + KEY.encode()).decode()}"}}'.encode()
    at = body.index(KEY.encode()) + cut
    filter_ = made(scrubResponses=True, scrubAs="Placeholder")
    seen = scrubbed(filter_, [body[:at], body[at:], b""])
    assert seen.startswith(f'{{"key": "{MINE}", '.encode())
    assert b"****" in seen
    assert KEY.encode() not in seen
    assert not filter_.keeps_length
    assert filter_.decodes


# -- the watch ---------------------------------------------------------------------------------------------------------


def watch():
    return PlaceholderWatch((OTHER,), "Backend a/b")


def bodies(limit):
    return BodyWatch((MINE, OTHER), limit, "Backend a/b")


def denied(call, *arguments):
    with pytest.raises(Denied) as caught:
        call(*arguments)
    assert caught.value.reason is Reason.PLACEHOLDER_MISPLACED
    assert caught.value.rule == "Backend a/b"
    assert OTHER not in caught.value.message


@pytest.mark.parametrize(
    ("lines", "target"),
    [
        ([(b"authorization", f"Bearer {OTHER}".encode())], b"/"),
        ([(b"x-anything", f"a{OTHER}b".encode())], b"/"),
        ([(b"authorization", b"Basic " + b64encode(f"u:{OTHER}".encode()))], b"/"),
        ([(b"authorization", b"Basic " + b64encode(f"us:{OTHER}".encode()))], b"/"),
        ([(b"authorization", b"Basic " + b64encode(f"use:{OTHER}".encode()))], b"/"),
        ([], f"/a/{OTHER}".encode()),
        ([], f"/a?b={OTHER}".encode()),
        ([], f"/a?b={OTHER}".replace("o", "%6f").encode()),
    ],
)
def test_a_placeholder_of_another_backend_ends_the_request(lines, target):
    denied(watch().backend_request, exchange(*lines, target=target))


def test_so_does_one_in_the_host():
    x = exchange()
    x.upstream_host = f"{OTHER}.evil.example".encode()
    denied(watch().backend_request, x)


def test_the_own_one_passes_the_watch():
    assert watch().backend_request(exchange((b"authorization", f"Bearer {MINE}".encode()))) is None


@pytest.mark.parametrize("placeholder", [MINE, OTHER])
@pytest.mark.parametrize("size", [1, 7, 26, 1000])
def test_a_body_may_have_none_however_it_is_cut(placeholder, size):
    body = b"x" * 100 + placeholder.encode() + b"y" * 100
    x, one = exchange(), bodies(4096)

    def send():
        for at in range(0, len(body), size):
            one.request_body(x, body[at : at + size], False)

    denied(send)


def test_a_body_is_searched_up_to_the_bound():
    x, one = exchange(), bodies(50)
    one.request_body(x, b"x" * 50 + OTHER.encode(), True)
    denied(bodies(50).request_body, exchange(), b"x" * 10 + OTHER.encode(), True)


def spec(placeholder, source="Backend a/b", body=0):
    settings = CredentialInjectorConfig(SecretRef("s"), placeholder=placeholder, placeholder_body_bytes=body)
    return ExtensionIR("i", "t", "backend-request", source=source, settings=settings)


def test_each_backend_is_watched_for_the_placeholders_of_the_others():
    mine, other, plain = spec(MINE), spec(OTHER, "Backend a/c"), spec("")
    watches = PlaceholderWatches([mine, other], EventAggregator())
    assert watches.on((mine,)).filter._foreign.search(OTHER.encode())
    assert not watches.on((mine,)).filter._foreign.search(MINE.encode())
    for text in (MINE, OTHER):
        assert watches.on((plain,)).filter._foreign.search(text.encode())
    assert watches.on(()) is watches.on((plain,))
    assert watches.on((mine, other)) is None  # both are its own, and bodies are not looked at
    assert watches.on_bodies() is None
    looking = PlaceholderWatches([spec(MINE, body=10)], EventAggregator())
    assert looking.on((spec(MINE, body=10),)) is None
    assert looking.on_bodies() is looking.on_bodies() is not None


def test_the_forms_are_those_of_the_placeholder_alone():
    assert not pattern_of([MINE]).search(b64encode(b"something else that is rather long"))
