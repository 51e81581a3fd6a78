"""Backends that speak the Model Context Protocol (streamable HTTP)."""
