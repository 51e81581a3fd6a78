"""Secrets of a HashiCorp Vault, asked in a thread: hvac, which makes the requests, blocks."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from egressproxy.filters.base import FilterContext, UnusableReference
from egressproxy.filters.credentials.oauth2 import Fetch, secret_of
from egressproxy.filters.credentials.refresher import Fetched, FetchError
from egressproxy.filters.credentials.token_config import Vault
from egressproxy.filters.credentials.token_endpoint import checked_call

if TYPE_CHECKING:  # imported at the first fetch, with hvac
    from egressproxy.filters.credentials.vault_session import VaultSession

INSTALL: Final = "`vault` needs the package hvac: pip install 'egressproxy[vault]'"


def from_vault(context: FilterContext, config: Vault) -> Fetch:
    """Fetches the secret. Raises UnusableReference where hvac is not installed."""
    call = context.calls.get(config.backend_ref.label)
    ref = config.token_ref or (config.app_role.secret_id_ref if config.app_role is not None else None)
    secret = secret_of(context, ref)
    if find_spec("hvac") is None:
        raise UnusableReference(INSTALL)
    session: VaultSession | None = None
    # A thread of its own: a Vault that does not answer keeps none from other work.
    thread = ThreadPoolExecutor(1, "vault")

    async def fetch() -> Fetched:
        nonlocal session
        loop = asyncio.get_running_loop()
        asked = checked_call(call, allow_plaintext=config.allow_plaintext)
        if ref is not None and secret is None:
            raise FetchError(f"the Secret {ref.label} is missing")
        if session is None:
            made = await loop.run_in_executor(thread, _session_type)
            session = made(asked, loop, config, secret)
        try:
            return await loop.run_in_executor(thread, session.fetch)
        except asyncio.CancelledError:
            session.cancel()  # or the thread would wait for its answer
            raise

    return fetch


def _session_type() -> type[VaultSession]:
    """Importing takes a third of a second, with requests."""
    from egressproxy.filters.credentials.vault_session import VaultSession

    return VaultSession
