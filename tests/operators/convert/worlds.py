"""Decisions of converted manifests, by the code that decides about traffic."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import yaml

from egressproxy.config.reading.load import read_all
from egressproxy.doors.products import offline
from egressproxy.gateway.snapshot import Snapshot
from egressproxy.operators.convert.manifests import Converted
from egressproxy.operators.explain.decision import decide
from egressproxy.operators.explain.hypothetical_request import HypotheticalRequest
from egressproxy.processes.loader.compilation import compiled


class World:
    """A configuration, and questions to it. It has no problem and no warning."""

    def __init__(self, converted: Converted, folder: Path) -> None:
        self.text = converted.written("egress")
        file = folder / "converted.yaml"
        file.write_text(self.text)
        self.policies: list[dict[str, Any]] = [
            each["spec"] for each in yaml.safe_load_all(self.text) if each["kind"] == "EgressPolicy"
        ]
        made = compiled(read_all([file]), ("127.0.0.1",))

        async def built() -> Snapshot:
            return offline(made.spec)

        self.snapshot = asyncio.run(built())

    def account(self, address: str) -> str:
        """The service account of a client address: the longest network decides."""
        found = [
            (ip_network(cidr).prefixlen, client["serviceAccount"])
            for spec in self.policies
            for client in spec.get("identity", {}).get("address", {}).get("clients", ())
            for cidr in client["cidrs"]
            if ip_address(address) in ip_network(cidr)
        ]
        return max(found, default=(0, "-"))[1]

    def allows(self, account: str, method: str, host: str, port: int, address: str) -> bool:
        """Whether it would reach the host, which has this address."""
        url = f"{host}:{port}" if method == "CONNECT" else f"http://{host}:{port}/"
        namespace = "-" if account == "-" else "egress"
        asked = HypotheticalRequest(method, url, namespace=namespace, service_account=account, asks_dns=False)
        if decide(self.snapshot, asked, b"").error is not None:
            return False
        return not any(
            ip_address(address) in ip_network(cidr)
            for spec in self.policies
            if "subjects" not in spec or account in [each["serviceAccount"] for each in spec["subjects"]]
            for entry in spec.get("destinations", {}).get("deny", ())
            for cidr in entry.get("cidrs", ())
            if port in entry.get("ports", (port,))
        )
