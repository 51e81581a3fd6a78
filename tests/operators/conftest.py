"""These tests have conversations with a gateway."""

from tests.gateway.conftest import converse as converse
from tests.gateway.conftest import converse_on as converse_on
