"""SecretSource: where the data of a Secret is, that no manifest holds: files, or a variable of the environment; and
where the CA certificates of a ClusterTrustBundle are.

An operator names them when the process is started; no manifest can, and nothing that is written through the API.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from egressproxy.model.secret import SecretBytes


@dataclass(frozen=True, slots=True)
class SecretSource:
    """Data of the Secret `namespace/name`: what `path` holds, or the `value` that stood in `variable`.

    A folder has an entry for each file, a file is the entry `key`, or the one of its own name. Without `name` the path
    is a folder of Secrets, as `NAME/KEY` or `NAMESPACE/NAME/KEY`.

    With `is_trust_bundle` it is no Secret but the ClusterTrustBundle `name`: the certificates of a PEM file, or of the
    files in a folder.
    """

    namespace: str = "default"
    name: str = ""
    key: str = ""
    path: Path | None = None
    variable: str = ""
    value: SecretBytes | None = field(default=None, repr=False)
    is_trust_bundle: bool = False

    def __str__(self) -> str:
        return f"environment variable {self.variable}" if self.path is None else str(self.path)


#: What a configuration is read from: manifests (a file, or a folder of them), and Secrets.
ConfigSource = Path | SecretSource
