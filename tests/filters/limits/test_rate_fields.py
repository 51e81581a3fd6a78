import pytest

from egressproxy.filters.limits.rate_fields import provider_fields, rate_limit_fields
from egressproxy.filters.limits.rules import QuotaRule, Reservation, key_text
from egressproxy.filters.limits.windows import window_of
from egressproxy.net.keyed_counters import KeyedCounters


def take(kind, limit, unit, left, reset_s, count="Total", name=""):
    rule = QuotaRule(
        name or f"{kind}-{unit}".lower(), kind, count, window_of(limit, unit), key_text(()), KeyedCounters(1), b"", ""
    )
    made = Reservation(rule, b"", b"", 1.0)
    made.left, made.reset_s = left, reset_s
    return made


def test_the_fields_say_quota_window_rest_and_reset():
    takes = [take("Requests", 100, "Minute", 41.7, 35.2), take("Tokens", 5_000_000, "Day", 12.0, 7200.0)]
    assert dict(rate_limit_fields(takes)) == {
        b"RateLimit-Policy": b'"requests-minute";q=100;w=60, "tokens-day";q=5000000;w=86400;qu="tokens"',
        b"RateLimit": b'"requests-minute";r=41;t=36, "tokens-day";r=12;t=7200',
    }


def test_the_clients_of_openai_are_told_in_its_words_of_the_limit_that_is_nearest():
    takes = [
        take("Requests", 100, "Minute", 41.7, 0.0121),
        take("Requests", 1000, "Hour", 7.0, 361.0),
        take("Tokens", 5000, "Minute", 12.0, 59.5),
        take("Bytes", 5000, "Minute", 12.0, 59.5),
    ]
    assert dict(provider_fields("openai", takes)) == {
        b"x-ratelimit-limit-requests": b"1000",
        b"x-ratelimit-remaining-requests": b"7",
        b"x-ratelimit-reset-requests": b"6m1s",
        b"x-ratelimit-limit-tokens": b"5000",
        b"x-ratelimit-remaining-tokens": b"12",
        b"x-ratelimit-reset-tokens": b"1m0s",
    }


def test_the_clients_of_anthropic_are_told_in_its_words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("egressproxy.filters.limits.rate_fields.time", lambda: 1_700_000_000.0)
    assert dict(provider_fields("anthropic", [take("Tokens", 50, "Minute", 3.9, 30.0, "Output")])) == {
        b"anthropic-ratelimit-output-tokens-limit": b"50",
        b"anthropic-ratelimit-output-tokens-remaining": b"3",
        b"anthropic-ratelimit-output-tokens-reset": b"2023-11-14T22:13:50Z",
    }


def test_others_have_no_words_of_their_own():
    assert provider_fields("gcp.gemini", [take("Requests", 1, "Minute", 1, 1)]) == ()
