"""Filters that look into requests: what they answer to a WebSocket, into which they cannot look."""

from __future__ import annotations

from typing import Any

import pytest

from egressproxy.filters.testing import FilterHarness, exchange

FILTERS: dict[str, dict[str, Any]] = {
    "ModelPolicy": {"allow": ["m"]},
    "PIIDetector": {"entities": [{"name": "EMAIL", "action": "Redact"}]},
    "PromptGuard": {},
    "QoSController": {"limits": [{"type": "Tokens", "limit": 1000, "unit": "Day"}]},
    "ResponsePolicy": {"maxLength": 10},
    "ToolPolicy": {"tools": {"allow": [{"names": ["look"]}]}},
}


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/responses", 426), ("/openai/v1/responses?a=b", 426), ("/v1/realtime", 403)]
)
@pytest.mark.parametrize("name", FILTERS)
def test_a_client_that_has_plain_requests_is_asked_for_them(name: str, path: str, status: int):
    """Codex sends them at once behind a 426; behind a 403 it tries the WebSocket again for six seconds."""
    x = exchange("GET", f"https://api.example{path}")
    x.request.upgrade = b"websocket"
    made = FilterHarness(FILTERS[name], type=f"egressproxy.io/{name}:v1", phase="request-headers")
    error = made.run(x).error
    assert error is not None
    assert error.status == status
