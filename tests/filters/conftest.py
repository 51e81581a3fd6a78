"""Filters that are tried inside a gateway have conversations with it."""

from tests.gateway.conftest import converse as converse
