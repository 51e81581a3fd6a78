"""The intermediate representation: the configuration as the data plane needs it.

Frozen, validated, complete and hashable; only `config.compile` makes it.

Every value compares by content: what has an equal value before and after a reload (a pool, a token bucket, a TLS
context) is kept. Durations are seconds, sizes bytes, names `namespace/name`.
"""
