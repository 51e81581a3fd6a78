"""The built-in limits.

Those of everybody at a place are one number (`filter_types`). All others are a QoSController: `qos_config` is what is
written, `quota` the filter, `token_quota` one that knows tokens. What a limit counts is decided by `rules` (whose
count) and `windows` (over time), on numbers in memory (`net/keyed_counters`, `memory_store`) or in `redis_store`.
"""
