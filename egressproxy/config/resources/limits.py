"""`limits` of an EgressPolicy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from egressproxy.config.resources.meta import Model
from egressproxy.config.resources.object_references import BackendObjectReference, SecretObjectReference
from egressproxy.config.resources.values import Count, Duration, Positive, RefusedValue

__all__ = ["Limits"]


class Rate(Model):
    """At most `limit` in each `window`; `burst` more at once (default: as many as the limit)."""

    per: Literal["Gateway", "Route", "Backend", "Identity"]
    """Whose count a request adds to."""
    limit: Positive
    """How many in each window."""
    window: Duration = Duration("1s", 1.0)
    """Length of the window."""
    burst: Positive | None = None
    """How many at once. Default: as many as the limit."""

    @field_validator("window")
    @classmethod
    def _has_length(cls, window: Duration) -> Duration:
        if not window.seconds:
            raise RefusedValue("a window cannot be empty", "write 1s, 1m or 1h")
        return window


class Concurrency(Model):
    per: Literal["Gateway", "Route", "Backend", "Identity"]
    """Whose count a request adds to."""
    limit: Positive
    """How many at the same time."""


class LimitStore(Model):
    """Where counts are kept: this process, or a Redis that several share."""

    type: Literal["Memory", "Redis"] = "Memory"
    """Memory: this machine's processes count together. Redis: several machines do."""
    backend_ref: BackendObjectReference | None = None
    """The backend of the Redis."""
    secret_ref: SecretObjectReference | None = None
    """The Secret with its password."""

    def model_post_init(self, context: Any) -> None:
        """Type Redis needs a backend."""
        if self.type == "Redis" and self.backend_ref is None:
            raise RefusedValue("a store of type Redis needs backendRef", "add backendRef")


class Limits(Model):
    """0 or absent: no limit, or the built-in one for heads; absent `connectionsPerClient`: three quarters of
    `connections` and `tunnels`.
    """

    max_head_bytes: Annotated[int, Field(strict=True, ge=1024, le=1_048_576)] | None = None
    """Size of a request's head; 431 beyond."""
    max_fields: Annotated[int, Field(strict=True, ge=1, le=10_000)] | None = None
    """Fields of a request's head; 431 beyond."""
    max_body_bytes: Count | None = None
    """Size of a request's body; 413 beyond."""
    connections: Count | None = None
    """Connections to one listener, in each worker."""
    connections_per_client: Count | None = None
    """Of these, the share of one client. Default: three quarters; 0: all of them."""
    tunnels: Count | None = None
    """Tunnels of one listener, in each worker."""
    requests: tuple[Rate, ...] = ()
    """Requests by time; 429 with Retry-After beyond."""
    tokens: tuple[Rate, ...] = ()
    """Tokens of language models by time."""
    bytes: tuple[Rate, ...] = ()
    """Bytes by time."""
    concurrency: tuple[Concurrency, ...] = ()
    """Requests at the same time."""
    store: LimitStore | None = None
    """Where `requests` and `concurrency` are counted."""
