"""Client: writes to the admin API of a running gateway, with nothing between."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import yaml

from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S

JSON = "application/json"


class Client:
    """One request at a time; `warnings` are those of the latest answer."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._port = gateway.admin_port
        self.warnings: list[str] = []

    def send(self, method: str, path: str, body: Any = None, content_type: str = JSON) -> tuple[int, dict[str, Any]]:
        return self.raw(method, path, b"" if body is None else json.dumps(body).encode(), content_type)

    def raw(self, method: str, path: str, body: bytes, content_type: str = JSON) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=WAIT_S)
        try:
            connection.request(method, path, body, {"Content-Type": content_type})
            answer = connection.getresponse()
            self.warnings = answer.headers.get_all("Warning") or []
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()


def delete_all(gateway: GatewayProcess, state: Path) -> None:
    """Delete what the folder of state has, one object after the other, through the API."""
    client = Client(gateway)
    for file in sorted(state.glob("[!.]*.yaml")):
        written = yaml.safe_load(file.read_text())
        group, name = written["apiVersion"], written["metadata"]["name"]
        namespace = written["metadata"].get("namespace")
        room = f"/namespaces/{namespace}" if namespace else ""
        kind = written["kind"].lower()
        kinds = f"{kind[:-1]}ies" if kind.endswith("policy") else f"{kind}s"
        code, answer = client.send("DELETE", f"/{'apis' if '/' in group else 'api'}/{group}{room}/{kinds}/{name}")
        assert code == 200, answer
