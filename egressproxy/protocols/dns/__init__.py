"""The server side of DNS: queries of clients, and the answers to them."""
