"""METADATA: the addresses at which clouds hand out credentials or control the machine.

One of them is dialled only if a rule names it.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from egressproxy.model.authority import IPAddress

METADATA: Final[frozenset[IPAddress]] = frozenset(
    ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, Azure, GCP, OpenStack, Hetzner, DigitalOcean …
        "169.254.170.2",  # AWS ECS task credentials
        "169.254.170.23",  # AWS EKS pod identity
        "169.254.0.23",  # Tencent
        "169.254.42.42",  # Scaleway
        "100.100.100.200",  # Alibaba
        "192.0.0.192",  # Oracle
        "168.63.129.16",  # Azure wire server: looks like any public address
        "fd00:ec2::254",  # AWS
        "fd00:ec2::23",  # AWS EKS pod identity
        "fd20:ce::254",  # GCP
        "fe80::a9fe:a9fe",  # OpenStack
    )
)
