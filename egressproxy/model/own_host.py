"""The name under which the gateway itself answers its clients, about what they may do."""

from __future__ import annotations

from typing import Final

#: It is looked up nowhere and dialled by nobody: `.internal` is for private use (ICANN, 29 July 2024).
OWN_HOST: Final = "egress.internal"
