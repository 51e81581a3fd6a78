"""SOCKS5 as a client speaks it, to a parent that is such a proxy."""
