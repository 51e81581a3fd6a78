"""Values that every layer shares: authorities, fields, message heads, exchanges. No I/O, no configuration."""
