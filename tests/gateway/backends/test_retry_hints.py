"""How long a backend asks to be left alone, in every form that providers write."""

from __future__ import annotations

import pytest

from egressproxy.gateway.backends.retry_hints import asked_pause_s
from egressproxy.model.fields import Fields

#: 2025-10-25T12:00:00Z, a Saturday.
NOW = 1761393600.0


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, 0.0),
        ({"retry-after": "7"}, 7.0),
        ({"Retry-After": "0"}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "Sat, 25 Oct 2025 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Sat, 25 Oct 2025 11:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "9" * 60}, 0.0),
        ({"retry-after": "7" + "0" * 100}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "120ms"}, 0.12),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "8.64s"}, 8.64),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1.2.3s"}, 0.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "12"}, 12.0),
        ({"x-ratelimit-remaining-requests": "59", "x-ratelimit-reset-requests": "6m0s"}, 0.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s", "retry-after": "2"}, 2.0),
        (
            {
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2025-10-25T12:00:20Z",
                "anthropic-ratelimit-output-tokens-remaining": "0",
                "anthropic-ratelimit-output-tokens-reset": "2025-10-25T12:00:45Z",
                "anthropic-ratelimit-input-tokens-remaining": "100",
                "anthropic-ratelimit-input-tokens-reset": "2025-10-25T13:00:00Z",
            },
            45.0,
        ),
        ({"anthropic-ratelimit-tokens-remaining": "0", "anthropic-ratelimit-tokens-reset": "2025-10-25T12:00:20"}, 20),
        ({"anthropic-ratelimit-tokens-remaining": "0", "anthropic-ratelimit-tokens-reset": "tomorrow"}, 0.0),
        ({"anthropic-ratelimit-tokens-remaining": "0"}, 0.0),
    ],
)
def test_the_pause_that_a_backend_asks_for(fields: dict[str, str], seconds: float):
    said = Fields.of((name.encode(), value.encode()) for name, value in fields.items())
    assert asked_pause_s(said, NOW) == pytest.approx(seconds)
