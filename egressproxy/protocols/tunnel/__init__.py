"""Tunnels: bytes both ways after the decision about the destination, and the guard that checks the first of them."""
