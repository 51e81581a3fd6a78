"""The filters of a configuration as an external processor of Envoy (envoy.service.ext_proc.v3): `egressproxy
serve-filters`.

Imported where that is asked for: a gateway does not need it.
"""
