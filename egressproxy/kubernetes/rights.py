"""A missing right in words, with the rule to add."""

from __future__ import annotations


def missing_right(verb: str, group: str, resource: str, namespace: str = "", name: str = "") -> str:
    """As `access.told`, which most gateways never need: it is imported here alone."""
    from egressproxy.kubernetes.access import told

    return told(verb, group, resource, namespace, name)
