"""SecretSource: where the data of a Secret is, that no manifest holds: files, or a variable of the environment.

An operator names them when the process is started; no manifest can, and nothing that is written through the API.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from egressproxy.model.secret import SecretBytes

__all__ = ["ConfigSource", "SecretSource"]


@dataclass(frozen=True, slots=True)
class SecretSource:
    """Data of the Secret `namespace/name`: what `path` holds, or the `value` that stood in `variable`.

    A folder has an entry for each file, a file is the entry `key`, or the one of its own name. Without `name` the path
    is a folder of Secrets, as `NAME/KEY` or `NAMESPACE/NAME/KEY`.
    """

    namespace: str = "default"
    name: str = ""
    key: str = ""
    path: Path | None = None
    variable: str = ""
    value: SecretBytes | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"environment variable {self.variable}" if self.path is None else str(self.path)


#: What a configuration is read from: manifests (a file, or a folder of them), and Secrets.
ConfigSource = Path | SecretSource
