"""Specs: configuration as the data plane needs it. Frozen, validated, complete, hashable; written by
`config.compile` only.

Every spec compares by content: whatever has an equal spec before and after a reload (a pool, a token bucket, a TLS
context) is kept. Durations are seconds, sizes bytes, names `namespace/name`.
"""
