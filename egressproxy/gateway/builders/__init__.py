"""From a configuration to a snapshot: whole, or the routes that have changed."""
