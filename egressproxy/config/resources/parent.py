"""ParentReference: the upstream gateway through which something is reached, and what it is shown to be let in."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from egressproxy.config.resources.meta import OUR_GROUP, Group, Kind, Model, SecretObjectReference
from egressproxy.config.resources.values import Bool, Label, Name, Refused

__all__ = ["BackendParent"]


class BackendParent(Model):
    """The Backend through which this one is reached, by CONNECT.

    `credentialsRef` names a Secret with `username` and `password` (type kubernetes.io/basic-auth); the parent is shown
    them in Proxy-Authorization. Where it has no TLS, that needs `allowPlaintext: true`.
    """

    group: Group = OUR_GROUP
    """API group of the parent's kind."""
    kind: Kind = "Backend"
    """Backend, of whichever group."""
    name: Name
    """Name of the Backend that is the proxy."""
    namespace: Label | None = None
    """Namespace of the parent. Default: that of the object; another one needs a ReferenceGrant."""
    credentials_ref: SecretObjectReference | None = None
    """Secret with username and password, which the parent is shown as Basic (type kubernetes.io/basic-auth)."""
    allow_plaintext: Bool = False
    """Show them to a parent without TLS, too. Without this, nothing goes through such a parent."""

    @model_validator(mode="after")
    def _allows_something(self) -> Self:
        if self.allow_plaintext and self.credentials_ref is None:
            raise Refused("allowPlaintext is for credentials, and there is no credentialsRef", "remove allowPlaintext")
        return self
