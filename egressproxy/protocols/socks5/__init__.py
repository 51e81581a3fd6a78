"""SOCKS5: as a client speaks it, to a parent that is such a proxy, and as a server, on listeners of our own."""
