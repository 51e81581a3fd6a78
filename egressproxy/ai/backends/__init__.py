"""Backends that are AI providers: other names for models, and translation between their APIs."""
