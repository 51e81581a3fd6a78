"""Installation tokens of GitHub Apps, for its API and for git over HTTPS.

Source: GitHub, "Generating a JSON Web Token (JWT) for a GitHub App" and "REST API endpoints for GitHub Apps".
"""

from __future__ import annotations

import json
from typing import Final

from egressproxy.filters.base import FilterContext
from egressproxy.filters.calls import FilterCall
from egressproxy.filters.credentials.oauth2 import Fetch, key_of
from egressproxy.filters.credentials.refresher import Fetched, FetchError
from egressproxy.filters.credentials.signing_key import AssertionKey
from egressproxy.filters.credentials.token_config import GithubApp
from egressproxy.filters.credentials.token_endpoint import answer_of, checked_call, json_of, seconds_until, token_of

#: GitHub takes an assertion of ten minutes, and advises that it begins a minute ago, in seconds.
_LIFE_S: Final = 540
_BACK_S: Final = 60
#: The life of an installation token in seconds: more is a clock that is behind.
_TOKEN_S: Final = 3600.0


def from_github_app(context: FilterContext, config: GithubApp) -> Fetch:
    """Fetches tokens of the installation. Raises UnusableReference for a bad key."""
    call = context.calls.get(config.backend_ref.label)
    key = key_of(context, config.private_key_ref, "", "RS256")
    wanted: dict[str, object] = {}
    if config.repositories:
        wanted["repositories"] = list(config.repositories)
    if config.permissions:
        wanted["permissions"] = dict(config.permissions)
    body = json.dumps(wanted).encode()

    async def fetch() -> Fetched:
        asked = checked_call(call, allow_plaintext=config.allow_plaintext)
        if key is None:
            raise FetchError("the Secret of githubApp.privateKeyRef is missing")
        fields = _fields(key, config)
        installation = config.installation_id or await _installation(asked, config, fields)
        path = f"{config.api_path}/app/installations/{installation}/access_tokens"
        fields.append((b"content-type", b"application/json"))
        answer = json_of(asked, await answer_of(asked, b"POST", path, fields, body), 201)
        token = token_of(answer, "token", bearer=False)
        return Fetched(token.value, min(_TOKEN_S, seconds_until(answer.get("expires_at"), "expires_at")))

    return fetch


def _fields(key: AssertionKey, config: GithubApp) -> list[tuple[bytes, bytes]]:
    assertion = key.sign({"iss": config.client_id or str(config.app_id)}, _LIFE_S, _BACK_S)
    return [
        (b"accept", b"application/vnd.github+json"),
        (b"authorization", b"Bearer " + assertion.encode()),
        (b"user-agent", b"egressproxy"),  # GitHub refuses requests without one
        (b"x-github-api-version", b"2022-11-28"),
    ]


async def _installation(call: FilterCall, config: GithubApp, fields: list[tuple[bytes, bytes]]) -> int:
    """The installation of the configured owner, which may be an organisation or a user. Raises FetchError."""
    if config.repository:
        paths = [f"/repos/{config.owner}/{config.repository}/installation"]
    else:
        paths = [f"/orgs/{config.owner}/installation", f"/users/{config.owner}/installation"]
    for path in paths:
        answer = await answer_of(call, b"GET", config.api_path + path, fields)
        if answer.status != 404:
            break
    else:
        what = f"{config.owner}/{config.repository}" if config.repository else config.owner
        raise FetchError(f"the app is not installed for {what} (backend {call.backend} answered with 404)")
    found = json_of(call, answer).get("id")
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise FetchError(f"backend {call.backend} named no installation for {config.owner}")
    return found
