"""A client of an API server in memory."""

from __future__ import annotations

from pathlib import Path

from egressproxy.kubernetes.api_client import ApiClient
from egressproxy.kubernetes.credentials import Credentials
from egressproxy.run_options import ClusterOptions
from tests.support.api_server import ApiServer


async def client_of(folder: Path, server: ApiServer) -> ApiClient:
    """To be closed. The kubeconfig is in the folder."""
    file = folder / "kubeconfig"
    file.write_text(server.kubeconfig())
    return ApiClient(await Credentials.load(ClusterOptions(kubeconfig=file)))
