"""The TLS sessions of many tenants."""

from __future__ import annotations

import pytest

from egressproxy.gateway.backends import tenant_sessions
from egressproxy.gateway.backends.tenant_sessions import TenantSessions


def test_each_tenant_has_its_own_with_each_target(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tenant_sessions, "MAX_SESSIONS", 3)
    sessions = TenantSessions()
    first = sessions.of(("a.test", 443), "one")
    others = [sessions.of(("a.test", 443), "two"), sessions.of(("b.test", 443), "one")]
    assert sessions.of(("a.test", 443), "one") is first
    assert first not in others
    assert others[0] is not others[1]
    sessions.of(("a.test", 443), "three")  # what was used the longest ago makes way
    assert sessions.of(("a.test", 443), "one") is first
    assert sessions.of(("a.test", 443), "two") is not others[0]
