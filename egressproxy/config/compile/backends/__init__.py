"""Backends, Services and parents."""
