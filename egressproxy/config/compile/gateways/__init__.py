"""Gateways, ListenerSets, and their listeners."""
