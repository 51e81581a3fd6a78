"""MCP's revisions and fields (modelcontextprotocol.io, Versioning; Transports, Streamable HTTP)."""

from __future__ import annotations

from typing import Final

#: All revisions, the oldest first.
MCP_REVISIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
#: The revisions without sessions, in which requests are independent.
STATELESS_REVISIONS: Final = frozenset((b"2026-07-28",))

#: The field with the revision that client and server have agreed on.
PROTOCOL_VERSION: Final = b"mcp-protocol-version"
#: The field with the id of the session.
SESSION_ID: Final = b"mcp-session-id"
