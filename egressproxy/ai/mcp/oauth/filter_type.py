"""The type of McpAuthorization."""

from __future__ import annotations

from egressproxy.ai.mcp.oauth.config import McpAuthorizationConfig
from egressproxy.filters.base import Filter, FilterContext, FilterType, Phase


def _build(context: FilterContext) -> Filter:
    if context.config.mode == "PassThrough":
        from egressproxy.ai.mcp.oauth.pass_through import PassThrough

        return PassThrough(context)
    from egressproxy.ai.mcp.oauth import token_filters

    by_code = context.config.mode == "AuthorizationCode"
    return token_filters.CallerToken(context) if by_code else token_filters.OwnToken(context)


MCP_AUTHORIZATION = FilterType(
    name="egressproxy.io/McpAuthorization:v1",
    phases=frozenset((Phase.BACKEND_REQUEST,)),
    config_model=McpAuthorizationConfig,
    build=_build,
    also=frozenset((Phase.BACKEND_RESPONSE, Phase.RESPONSE_BODY)),
    machine_field=lambda config: "stateFolder" if config.state_folder else "",
    summary="Authorizes requests to an MCP server by OAuth, or lets clients do it.",
)
