"""The build of snapshots with all products, for processes that serve or explain."""

from __future__ import annotations

from egressproxy.ai.backends.call import AiRules
from egressproxy.ai.backends.endpoint import AiEndpoint
from egressproxy.ai.data_plane import answer_beginning, error_form
from egressproxy.ai.mcp.filters import McpRules, path_filter
from egressproxy.envoy.ext_authz.clients import external_auth
from egressproxy.gateway.builders.snapshot_builder import build, offline
from egressproxy.gateway.products import PRODUCTS
from egressproxy.operators.self_service.answers import SelfServiceAnswers

__all__ = ("build", "offline")

PRODUCTS.rules = (AiRules(), McpRules())
PRODUCTS.endpoint = AiEndpoint.of
PRODUCTS.backend_filter = path_filter
PRODUCTS.external_auth = external_auth
PRODUCTS.error_form = error_form
PRODUCTS.answer_beginning = answer_beginning
PRODUCTS.self_service = SelfServiceAnswers
