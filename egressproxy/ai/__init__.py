"""AI: the APIs of providers, translation between them, filters of prompts and content, and MCP."""
