"""AiEndpoint: what one backend of a rule says of AI requests: its APIs, where they are, and its names for models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from egressproxy.ai.apis.apis import Api, counted_api
from egressproxy.ai.translation.apis import COUNTING, VERTEX, api_of, count_path_at, path_at
from egressproxy.gateway.backends.provider_endpoint import ProviderEndpoint
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.ir.policy import MAX_BUFFERED_BYTES
from egressproxy.ir.route import WeightedBackend

#: In an explanation, for a name that depends on the request.
_ANY_MODEL: Final = "MODEL"


@dataclass(slots=True, eq=False, repr=False)
class AiEndpoint(ProviderEndpoint):
    """`apis` are those that are served, the preferred one first; none where nothing is said, and nothing translated.
    `prefix` stands before their paths; b"" where nothing is said: then requests that are not translated keep theirs.
    `drops`: what only tunes is left out of translated requests.
    """

    apis: tuple[Api, ...]
    prefix: bytes
    drops: bool
    max_body_bytes: int  # of a request that is changed or translated
    azure_version: str  # of Azure's paths of deployments; "": other paths
    _alias: str
    _aliases: dict[str, str]

    @classmethod
    def of(cls, weighted: WeightedBackend) -> AiEndpoint | None:
        """That of a backend of a rule; None where it says nothing."""
        ai = weighted.backend.ai if weighted.backend is not None else None
        if ai is None and not weighted.model_alias and not weighted.model_aliases:
            return None
        apis = tuple(map(Api, ai.apis)) if ai is not None else ()
        prefix = ai.prefix.encode() if ai is not None else b""
        longest = ai.max_body_bytes if ai is not None else MAX_BUFFERED_BYTES
        drops = ai is not None and ai.drops
        version = ai.azure_api_version if ai is not None else ""
        return cls(apis, prefix, drops, longest, version, weighted.model_alias, dict(weighted.model_aliases))

    @property
    def renames(self) -> bool:
        return bool(self._alias or self._aliases)

    @property
    def always_sends(self) -> str:
        """The one model that it is asked for, whatever the request names; "" where that depends on the request."""
        return "" if self._aliases else self._alias

    def model_for(self, asked: str) -> str:
        """The model that it is asked for, where the request names this one."""
        return self._aliases.get(asked) or self._alias or asked

    def api_for(self, api: Api | None) -> Api | None:
        """The API in which a request of `api` goes to this backend. None: an unknown API, which is not translated."""
        return api if api is None or not self.apis or api in self.apis else self.apis[0]

    def changes_body(self, api: Api | None) -> bool:
        """Whether the body of a request of this API may have to be read or to be another one here."""
        return self.renames or self.api_for(api) is not api or self.needs_model(api)

    def needs_model(self, api: Api | None) -> bool:
        """Whether the path of a request that stays in this API has to name its model, as Azure's deployments are."""
        return bool(self.azure_version) and api is Api.OPENAI_CHAT and self.api_for(api) is api

    @property
    def has_own_paths(self) -> bool:
        """Whether requests that are not translated go to other paths than the client's."""
        return bool(self.prefix or self.azure_version)

    def path_of(self, api: Api, model: str, *, is_stream: bool) -> bytes:
        """The path of a request for this model in `api`."""
        return path_at(api, self.prefix, self.azure_version, model, is_stream=is_stream)

    def translated_count(self, path: bytes) -> Api | None:
        """The API of a POST to this path that asks for a count of tokens; None if the provider itself serves it."""
        api = counted_api(path) if self.apis else None
        return None if api in self.apis else api

    def counts_in(self) -> Api | None:
        """The API in which the provider counts the tokens of a translated request; None if it does not."""
        return self.apis[0] if self.apis and self.apis[0] in COUNTING else None

    def count_path_of(self, api: Api, model: str) -> bytes:
        """The path of a count of tokens for this model in `api`."""
        return count_path_at(api, self.prefix, model)

    @property
    def is_vertex(self) -> bool:
        return VERTEX in self.prefix

    @property
    def values(self) -> dict[str, object]:
        """For explanations: `apis`, `prefix`, `azureApiVersion`, `untranslatable` where it is Refuse, `modelAlias` and
        `modelAliases`, as far as they are said.
        """
        values: dict[str, object] = {
            "apis": [api.value for api in self.apis],
            "prefix": self.prefix.decode(),
            "azureApiVersion": self.azure_version,
            "untranslatable": "Refuse" if self.apis and not self.drops else "",
            "modelAlias": self._alias,
            "modelAliases": self._aliases,
        }
        return {name: value for name, value in values.items() if value}

    def sentence(self, path: bytes) -> str:
        sentence = self._becomes(path)
        names = [f"{sent} for {asked}" for asked, sent in self._aliases.items()]
        if self._alias:
            names.append(f"{self._alias} for {'every other model' if names else 'every model'}")
        return f"{sentence}, asks for {', '.join(names)}" if names else sentence

    def _becomes(self, path: bytes) -> str:
        api = api_of(path) if path else None
        target = self.api_for(api)
        if self.translated_count(path) is not None:
            counting = self.counts_in()
            if counting is None:
                return "a count of tokens is estimated by the gateway"
            at = self.count_path_of(counting, _ANY_MODEL).decode()
            return f"a count of tokens is translated to {counting.value} (POST {at})"
        if api is None or target is None:
            return "goes as it is"
        at = self.path_of(target, _ANY_MODEL, is_stream=False).decode()
        if target is api:
            return f"{api.value} goes as it is{f' (POST {at})' if self.needs_model(api) else ''}"
        return f"{api.value} is translated to {target.value} (POST {at})"


def endpoint_of(backend: RouteBackend) -> AiEndpoint | None:
    """What this backend says of AI requests; None where it says nothing."""
    endpoint = backend.ai
    return endpoint if isinstance(endpoint, AiEndpoint) else None
