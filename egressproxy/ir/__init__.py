"""The intermediate representation: the configuration for the data plane.

Frozen, validated, complete and hashable; only `config.compile` makes it.

Every value compares by content: an object (a pool, a token bucket, a TLS context) is kept over a reload if its settings
are equal. Durations are seconds, sizes bytes, names `namespace/name`.
"""
