"""Reading: get, list, watch, discovery, tables."""
