"""VaultSession: reads a secret of a Vault by hvac, whose requests go over a call of the gateway's own.

So they go where the policies of the Backend let them, over its TLS, and follow no redirects. All methods but `cancel`
block: they are for one thread.

Source: HashiCorp, Vault HTTP API: auth methods Kubernetes, AppRole and token; KV versions 1 and 2; /sys/leases/renew.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future
from time import monotonic
from typing import Any, Final

import hvac
import requests
from hvac.exceptions import Forbidden, VaultError
from requests.adapters import BaseAdapter

from egressproxy.filters.calls import CallAnswer, FilterCall
from egressproxy.filters.credentials.oauth2 import token_file
from egressproxy.filters.credentials.refresher import Fetched, FetchError
from egressproxy.filters.credentials.token_config import Vault
from egressproxy.filters.credentials.token_endpoint import TIMEOUT_S, answer_of
from egressproxy.model.secret import SecretBytes

#: requests wants a URL; where the call goes, the Backend says.
_URL: Final = "https://vault.invalid"
#: Fields of the call itself.
_OF_CALL: Final = frozenset(("content-length", "connection", "host", "transfer-encoding"))
#: A renewal that gives less than this share of a life is near the end of all renewals.
_SHORT: Final = 0.5


class VaultSession:
    """The token of the gateway, and the lease of its secret. `secret`: the token or the secret id."""

    def __init__(
        self, call: FilterCall, loop: asyncio.AbstractEventLoop, config: Vault, secret: SecretBytes | None
    ) -> None:
        self._config = config
        self._secret = secret
        self._over = _CallAdapter(call, loop)
        session = requests.Session()
        session.trust_env = False  # no proxy, no netrc
        session.headers.clear()
        session.mount(_URL, self._over)
        # A token of "" is none: None would be one of the environment.
        self._client: Any = hvac.Client(
            _URL, token="", session=session, namespace=config.namespace or None, allow_redirects=False
        )
        self._token_life = self._token_until = 0.0
        self._is_renewable = False
        #: Of a dynamic secret: its lease, how long that was at first, and its value.
        self._lease = ""
        self._lease_life = 0.0
        self._value = SecretBytes(b"")

    def fetch(self) -> Fetched:
        """The secret as it is now. Raises FetchError, with the status and nothing of what was sent or answered."""
        self._over.begin()
        try:
            return self._read_with_token()
        except VaultError:
            raise self._over.refusal(self._config.path) from None
        except requests.RequestException:  # before anything was sent
            raise FetchError("the token of the gateway cannot be sent in a field", is_final=True) from None
        except (KeyError, TypeError, AttributeError, ValueError):
            raise FetchError(f"backend {self._over.backend} sent no answer of a Vault") from None
        except (CancelledError, TimeoutError):
            raise FetchError(f"backend {self._over.backend} did not answer in time") from None

    def cancel(self) -> None:
        """End what another thread waits for in `fetch`."""
        self._over.cancel()

    def _read_with_token(self) -> Fetched:
        has_logged_in = self._authenticate()
        try:
            return self._read()
        except Forbidden:
            if has_logged_in or not self._logs_in:
                raise
        self._token_until = 0.0  # somebody has revoked it
        self._authenticate()
        return self._read()

    @property
    def _logs_in(self) -> bool:
        return self._config.kubernetes is not None or self._config.app_role is not None

    def _authenticate(self) -> bool:
        """Have a token with some life left. Returns whether it is a new one: leases end with the token before it."""
        config, client = self._config, self._client
        if not self._logs_in:
            client.token = token_file(config.token_file) if config.token_file else self._revealed()
            self._token_until = math.inf
            return False
        left = self._token_until - monotonic()
        if 0 < left >= self._token_life * _SHORT:
            return False
        if left > 0 and self._is_renewable and self._renews_token():
            return False
        held, client.token = client.token, ""
        try:
            auth = self._log_in()
        except (VaultError, FetchError):
            client.token = held
            if left > 0:
                return False  # the token before is still one
            raise
        self._token_life, self._lease = self._took(auth), ""
        return True

    def _log_in(self) -> Any:
        config, client = self._config, self._client
        if config.kubernetes is not None:
            jwt = token_file(config.kubernetes.token_file)
            answer = client.auth.kubernetes.login(config.kubernetes.role, jwt, mount_point=config.kubernetes.mount)
        else:
            assert config.app_role is not None
            role = config.app_role
            answer = client.auth.approle.login(role.role_id, self._revealed(), mount_point=role.mount)
        return answer["auth"]

    def _renews_token(self) -> bool:
        try:
            life = self._took(self._client.auth.token.renew_self()["auth"])
        except VaultError:
            return False
        return life > self._token_life * _SHORT

    def _took(self, auth: Mapping[str, Any]) -> float:
        life = _seconds(auth["lease_duration"]) or math.inf
        self._token_until, self._is_renewable = monotonic() + life, auth["renewable"] is True
        return life

    def _revealed(self) -> str:
        assert self._secret is not None
        try:
            return self._secret.reveal().decode("ascii")
        except UnicodeDecodeError:
            raise FetchError("the Secret does not hold a token or secret id", is_final=True) from None

    def _read(self) -> Fetched:
        config = self._config
        if config.engine == "KvV2":
            kv = self._client.secrets.kv.v2
            answer = kv.read_secret_version(config.path, mount_point=config.mount, raise_on_deleted_version=True)
            return self._of_kv(answer["data"]["data"])
        if config.engine == "KvV1":
            return self._of_kv(self._client.secrets.kv.v1.read_secret(config.path, mount_point=config.mount)["data"])
        if self._lease:
            life = self._renewed()
            if life > self._lease_life * _SHORT:
                return self._of_lease(life)
        answer = self._client.adapter.get(f"/v1/{config.mount}/{config.path}")
        self._value = self._entry(answer["data"])
        self._lease_life = _seconds(answer["lease_duration"])
        self._lease = str(answer["lease_id"]) if answer["renewable"] is True else ""
        return self._of_lease(self._lease_life)

    def _renewed(self) -> float:
        """How long the lease is now; 0 where it cannot be renewed."""
        try:
            return _seconds(self._client.sys.renew_lease(self._lease)["lease_duration"])
        except VaultError:
            return 0.0

    def _of_kv(self, data: Mapping[str, Any]) -> Fetched:
        return Fetched(
            self._entry(data).reveal(), float(self._config.stale_seconds), float(self._config.refresh_seconds)
        )

    def _of_lease(self, life: float) -> Fetched:
        """The value for as long as its lease, which ends with the token at the latest."""
        left = min(life or self._config.stale_seconds, self._token_until - monotonic())
        if left <= 0:
            raise FetchError("the token of the gateway has expired")
        return Fetched(self._value.reveal(), left)

    def _entry(self, data: Mapping[str, Any]) -> SecretBytes:
        value = data.get(self._config.key)
        if not isinstance(value, str):
            raise FetchError(f"the secret {self._config.path} has no text as {self._config.key}", is_final=True)
        return SecretBytes(value.encode())


class _CallAdapter(BaseAdapter):
    """Sends what requests has prepared over a call, in the loop of the gateway, for a thread that waits."""

    def __init__(self, call: FilterCall, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.backend = call.backend
        self._call = call
        self._loop = loop
        self._pending: Future[CallAnswer] | None = None
        self._is_cancelled = False
        #: Of the last request: the status of its answer, and whether it was a login.
        self._status = 0
        self._is_login = False

    def begin(self) -> None:
        self._is_cancelled, self._status = False, 0

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._pending is not None:
            self._pending.cancel()

    def refusal(self, path: str) -> FetchError:
        """The error for the last answer. A secret that is not there any more has no value."""
        if self._is_login:
            return FetchError(f"backend {self.backend} answered with {self._status} for the login of the gateway")
        what = {403: ", the gateway may not read it", 404: ", it does not exist"}.get(self._status, "")
        message = f"backend {self.backend} answered with {self._status} for the secret {path}{what}"
        return FetchError(message, is_final=self._status == 404)

    def send(self, request: Any, *_: Any, **__: Any) -> requests.Response:
        lines = ((name.lower(), value) for name, value in request.headers.items())
        fields = [(_bytes(name), _bytes(value)) for name, value in lines if name not in _OF_CALL]
        asked = answer_of(self._call, _bytes(request.method), request.path_url, fields, _bytes(request.body or b""))
        self._is_login = request.path_url.startswith("/v1/auth/")
        self._pending = asyncio.run_coroutine_threadsafe(asked, self._loop)
        if self._is_cancelled:
            self._pending.cancel()
        answer = self._pending.result(TIMEOUT_S + 1)
        self._pending, self._status = None, answer.status
        if 300 <= answer.status < 400:
            raise FetchError(f"backend {self.backend} redirects ({answer.status}): name the active node instead")
        response = requests.Response()
        response.status_code, response._content, response.url = answer.status, answer.body, request.url
        response.headers["Content-Type"] = (answer.fields.get(b"content-type") or b"").decode("latin-1")
        return response

    def close(self) -> None:
        pass


def _bytes(text: str | bytes) -> bytes:
    return text.encode("latin-1") if isinstance(text, str) else text


def _seconds(found: object) -> float:
    """A duration of an answer. Raises ValueError."""
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise ValueError("not a duration")
    return float(found)
