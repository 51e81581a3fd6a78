"""AiRequests: the gateway's own filter in the chain of a rule with AI providers: it begins calls, and tells of them."""

from __future__ import annotations

from typing import Final

from egressproxy.errors import Reason
from egressproxy.filters.base import Filter, Phase
from egressproxy.gateway.ai.call import AiCall
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.exchange import Exchange
from egressproxy.telemetry.translations import Translations

#: Before all others: the API is told by the path as the client has sent it.
REQUESTS: Final = ExtensionIR(
    "ai", "egressproxy.io/Ai:v1", Phase.REQUEST_HEADERS.value, -(10**9), pre_auth=True, timeout_s=0
)
#: The note that asks for `complete`.
MARK: Final = "ai"


def import_translation() -> None:
    """Have what translates here before the first request that needs it. Takes 20 milliseconds, once."""
    import egressproxy.translation.translator  # noqa: F401


class AiRequests(Filter):
    """Of one rule."""

    runs_in = frozenset((Phase.REQUEST_HEADERS,))

    def __init__(self, route: str, translations: Translations) -> None:
        self._route = route
        self._translations = translations

    def request_headers(self, x: Exchange) -> None:
        if not x.is_tunnel:
            AiCall.begin(x)

    def complete(self, x: Exchange) -> None:
        call = AiCall.of(x)
        if call is None:
            return
        if call.api is not None and x.reason is Reason.UNTRANSLATABLE:
            self._translations.count(self._route, "-", call.api.value, "-", Reason.UNTRANSLATABLE.value)
        elif call.api is not None and call.backend_api is not None and call.is_translated:
            result = "ok" if x.reason is Reason.OK and 200 <= x.status < 400 else "error"
            self._translations.count(self._route, x.backend, call.api.value, call.backend_api.value, result)
        fields = call.log_fields()
        if fields:
            x.add_log_fields(fields)
