"""The filter types that speak Envoy's ext_proc, or its like: their names and modules."""

from __future__ import annotations

from egressproxy.filters.builtin import register


def register_filter_types() -> None:
    """Register them with the catalogue of built-in types."""
    register(
        "egressproxy.envoy",
        {
            "ExternalProcessor": "processors.external_processor:EXTERNAL_PROCESSOR",
            "Webhook": "processors.webhook:WEBHOOK",
        },
        extended=("ExternalProcessor",),
    )
