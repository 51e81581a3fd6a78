"""What is measured of conversations has the fixtures of those that test them."""

from tests.gateway.conftest import converse as converse
from tests.gateway.conftest import converse_on as converse_on
