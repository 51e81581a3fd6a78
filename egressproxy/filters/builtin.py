"""The built-in filter types."""

from __future__ import annotations

from egressproxy.filters.base import FilterType
from egressproxy.filters.cors import CORS
from egressproxy.filters.credential_injector import CREDENTIAL_INJECTOR
from egressproxy.filters.header_policy import HEADER_POLICY
from egressproxy.filters.limits import BODY_LIMIT, CONCURRENCY_LIMIT, QOS_CONTROLLER, REQUEST_RATE_LIMIT
from egressproxy.filters.python_filter import PYTHON
from egressproxy.filters.request_redirect import REQUEST_REDIRECT
from egressproxy.filters.url_rewrite import URL_REWRITE

__all__ = ["BUILTIN_TYPES"]

BUILTIN_TYPES: tuple[FilterType, ...] = (
    BODY_LIMIT, CONCURRENCY_LIMIT, CORS, CREDENTIAL_INJECTOR, HEADER_POLICY, PYTHON, QOS_CONTROLLER,
    REQUEST_RATE_LIMIT, REQUEST_REDIRECT, URL_REWRITE,
)  # fmt: skip
