"""These tests have conversations with a gateway."""

from tests.gateway.conftest import converse as converse
