"""Converters of other proxies' access rules to EgressPolicies. They never allow more than the source does."""
