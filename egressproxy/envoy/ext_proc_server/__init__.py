"""The filters of a configuration as an external processor of Envoy (`egressproxy serve-filters`), imported at need."""
