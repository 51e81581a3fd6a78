"""What users write: one model per kind. `Resource` is the base, `kind_class` finds a model by apiVersion and kind."""

from egressproxy.config.resources.kinds import BY_API_VERSION, KINDS, kind_class
from egressproxy.config.resources.meta import Key, Origin, Resource

__all__ = ["BY_API_VERSION", "KINDS", "Key", "Origin", "Resource", "kind_class"]
