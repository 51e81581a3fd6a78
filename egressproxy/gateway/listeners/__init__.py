"""Bound ports, and the connections of clients that speak no HTTP."""
