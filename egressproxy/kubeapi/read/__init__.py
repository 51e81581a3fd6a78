"""Reading the API: get, list, watch, discovery, tables."""
