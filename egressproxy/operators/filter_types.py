"""The filter types of operators' tools: their names and modules."""

from __future__ import annotations

from egressproxy.filters.builtin import register


def register_filter_types() -> None:
    """Register them with the catalogue of built-in types."""
    register(
        "egressproxy.operators",
        {"ApprovalHold": "approval.approval_hold:APPROVAL_HOLD", "Audit": "audit.audit:AUDIT"},
    )
