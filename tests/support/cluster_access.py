"""ClusterAccess: objects of an API server as a person has them with kubectl, for the real one and the fake."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from typing import Any

from egressproxy.config.served_kinds import CONFIGURED, ServedKind

Manifest = dict[str, Any]
SLICES = "discovery.k8s.io/v1"
#: In which a server has EndpointSlices that is older than 1.21.
OLD_SLICES = "discovery.k8s.io/v1beta1"


class ClusterAccess:
    """`token` is that of whoever asks. With `has_old_slices` EndpointSlices are written as of `OLD_SLICES`."""

    def __init__(
        self, url: str, token: str, context: ssl.SSLContext | None = None, *, has_old_slices: bool = False
    ) -> None:
        self.url = url
        self._token = token
        self._tls = context
        self._has_old_slices = has_old_slices

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", token: str = ""
    ) -> tuple[int, Any]:
        """Status and body of the answer."""
        headers = {"Authorization": f"Bearer {token or self._token}", "Content-Type": content_type}
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(asked, context=self._tls) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read()
            return error.code, json.loads(text) if text.startswith(b"{") else text  # it has not begun to serve the kind

    def find(self, manifest: Manifest) -> Manifest | None:
        """The object of this kind and name as the server has it."""
        status, found = self.request("GET", self.path(manifest))
        return found if status == 200 else None

    def put(self, manifest: Manifest) -> None:
        """Create the object, or replace what it says."""
        held = self.find(manifest)
        path, made = self.path(manifest), self._written(manifest)
        if held is None:
            done = self.request("POST", path.rpartition("/")[0], made)
        else:
            metadata = {**made["metadata"], "resourceVersion": held["metadata"]["resourceVersion"]}
            fixed = {"clusterIP": held["spec"].get("clusterIP")} if made["kind"] == "Service" else {}
            spec = {"spec": {**made["spec"], **fixed}} if "spec" in made else {}
            done = self.request("PUT", path, {**made, **spec, "metadata": metadata})
        if done[0] == 409:  # somebody has written its status meanwhile
            return self.put(manifest)
        assert done[0] in (200, 201), (done, made)
        if made["kind"] == "Pod" and "status" in made:
            self.request("PATCH", f"{path}/status", {"status": made["status"]}, "application/merge-patch+json")
        return None

    def delete(self, manifest: Manifest) -> None:
        """The object is gone at once, if it was there."""
        status, told = self.request("DELETE", f"{self.path(manifest)}?gracePeriodSeconds=0")
        assert status in (200, 404), told

    def conditions(self, manifest: Manifest) -> set[str]:
        """Every condition in its status, as `Type=Status/Reason`, of those that are of its generation."""
        found = self.find(manifest) or {}
        generation = found.get("metadata", {}).get("generation")
        return {
            f"{each['type']}={each['status']}/{each['reason']}"
            for each in _conditions(found.get("status"))
            if each.get("observedGeneration", generation) == generation
        }

    def events(self, manifest: Manifest) -> set[str]:
        """The reasons of the Events about it."""
        metadata = manifest["metadata"]
        namespace = metadata.get("namespace", "default")
        _, found = self.request("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
        about = (manifest["kind"], metadata["name"])
        return {
            each["reason"]
            for each in found["items"]
            if (each["regarding"].get("kind"), each["regarding"].get("name")) == about
        }

    def _written(self, manifest: Manifest) -> Manifest:
        is_old = self._has_old_slices and manifest["apiVersion"] == SLICES
        return {**manifest, "apiVersion": OLD_SLICES} if is_old else manifest

    def path(self, manifest: Manifest) -> str:
        written = self._written(manifest)
        kind = kind_of(manifest)
        group = f"/apis/{written['apiVersion']}" if kind.group else f"/api/{written['apiVersion']}"
        namespace = f"/namespaces/{manifest['metadata']['namespace']}" if kind.is_namespaced else ""
        return f"{group}{namespace}/{kind.plural}/{manifest['metadata']['name']}"


def kind_of(manifest: Manifest) -> ServedKind:
    group, _, _ = manifest["apiVersion"].rpartition("/")
    return next(each for each in CONFIGURED if (each.group, each.kind) == (group, manifest["kind"]))


def _conditions(value: Any) -> list[dict[str, Any]]:
    """All that stand anywhere in a status."""
    if isinstance(value, list):
        return [each for part in value for each in _conditions(part)]
    if not isinstance(value, dict):
        return []
    own = value.get("conditions", [])
    return [*own, *(each for name, part in value.items() if name != "conditions" for each in _conditions(part))]
