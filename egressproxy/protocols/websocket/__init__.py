"""WebSocket frames, for connections whose messages filters look at: those of all others pass as bytes of a tunnel."""
