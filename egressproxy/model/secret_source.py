"""SecretSource: where the data of a Secret is, that no manifest holds: files, or a variable of the environment.

An operator names them when the process is started; no manifest can, and nothing that is written through the API.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from egressproxy.model.secret import SecretBytes

__all__ = ["ConfigSource", "SecretSource", "plain_source", "source_of"]


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


def plain_source(source: ConfigSource) -> object:
    """As plain values, for `source_of` in another process of ours. With the value: through inherited pipes alone."""
    if isinstance(source, Path):
        return str(source)
    path = None if source.path is None else str(source.path)
    value = None if source.value is None else source.value.reveal()
    return (source.namespace, source.name, source.key, path, source.variable, value)


def source_of(plain: str | Sequence[str | bytes | None]) -> ConfigSource:
    """What `plain_source` was given. Raises nearly everything where it is nothing of the kind."""
    if isinstance(plain, str):
        return Path(plain)
    namespace, name, key, path, variable, value = plain
    assert isinstance(namespace, str)
    assert isinstance(name, str)
    assert isinstance(key, str)
    assert isinstance(variable, str)
    return SecretSource(
        namespace, name, key, None if path is None else Path(str(path)), variable,
        SecretBytes(value) if isinstance(value, bytes) else None,
    )  # fmt: skip
