"""The filter types of AI: their names and modules."""

from __future__ import annotations

from egressproxy.filters.builtin import register


def register_filter_types() -> None:
    """Register them with the catalogue of built-in types."""
    register(
        "egressproxy.ai",
        {
            "AccessPolicy": "filters.access_policy:ACCESS_POLICY",
            "Cache": "cache.cache:CACHE",
            "McpAuthorization": "mcp.oauth.filter_type:MCP_AUTHORIZATION",
            "ModelPolicy": "filters.model_policy:MODEL_POLICY",
            "PIIDetector": "content.pii_detector:PII_DETECTOR",
            "PromptGuard": "content.prompt_guard:PROMPT_GUARD",
            "QoSController": "limits.qos_controller:QOS_CONTROLLER",
            "RegionLock": "filters.region_lock:REGION_LOCK",
            "ResponsePolicy": "content.response_policy:RESPONSE_POLICY",
            "TokenMeter": "filters.token_meter:TOKEN_METER",
            "ToolPins": "filters.tool_policy:TOOL_PINS",
            "ToolPolicy": "filters.tool_policy:TOOL_POLICY",
        },
        core=("QoSController",),
        extended=("ModelPolicy", "PIIDetector", "PromptGuard"),
    )
