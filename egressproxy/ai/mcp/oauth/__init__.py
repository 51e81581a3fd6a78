"""OAuth between clients, the gateway and MCP servers: the filter McpAuthorization."""
