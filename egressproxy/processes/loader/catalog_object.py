"""The catalogue of filter types as a ConfigMap, for `kubectl get`: made by the gateway, and read-only. It is made
when somebody first asks for objects, since that takes three times as long as to read a small configuration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from egressproxy.config.compile.interface import CATALOG
from egressproxy.doors.catalog import Catalog
from egressproxy.model.published_object import Key
from egressproxy.processes.loader.result import pack_shown

CATALOG_KEY: Key = ("", "ConfigMap", *CATALOG)


def catalogue(declared: bytes) -> bytes:
    """The ConfigMap as `result.shown` reads it, in the process that loads. The request is `CompiledConfig.declared`."""
    return pack_shown(((CATALOG_KEY, catalog_manifest(json.loads(declared)), 1, None, ""),))


def catalog_manifest(declared: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The ConfigMap: `catalog.json` lists the types, and each schema of a config has an entry of its own.

    `declared` are the types of FilterType objects (`Compiled.filter_types`). A package that no configuration needs is
    not imported for it: its types are listed without phases and schema.
    """
    data: dict[str, str] = {}
    types = []
    for name, described in sorted({**declared, **Catalog().describe(imports=False)}.items()):
        listed = {"type": name, **{field: value for field, value in described.items() if field != "config"}}
        if "config" in described:
            listed["schema"] = f"{name.replace('/', '_').replace(':', '_')}.json"
            data[listed["schema"]] = json.dumps(described["config"], sort_keys=True)
        types.append(listed)
    namespace, name = CATALOG
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "egressproxy"},
        },
        "data": {"catalog.json": json.dumps({"types": types}, indent=1), **data},
    }
