"""Tunnels: bytes both ways, once the destination was decided; and the guard that looks at the first of them."""
