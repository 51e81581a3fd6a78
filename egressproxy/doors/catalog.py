"""The catalogue with the filter types of all products, for processes that read, check or serve a configuration."""

from __future__ import annotations

from egressproxy.ai import filter_types as ai
from egressproxy.envoy import filter_types as envoy
from egressproxy.filters.catalog import Catalog
from egressproxy.operators import filter_types as operators

__all__ = ("Catalog",)

ai.register_filter_types()
envoy.register_filter_types()
operators.register_filter_types()
