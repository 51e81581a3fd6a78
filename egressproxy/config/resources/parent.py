"""BackendParent: the upstream gateway through which something is reached, and what it is shown to be let in."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from pydantic.alias_generators import to_camel

from egressproxy.config.resources.meta import OUR_GROUP, Model
from egressproxy.config.resources.object_references import Group, Kind, SecretObjectReference
from egressproxy.config.resources.values import Bool, Label, RefusedValue

__all__ = ["BackendParent"]


class BackendParent(Model):
    """The Backend through which this one is reached, by CONNECT; or `direct: true`: none, whatever a policy says.

    `credentialsRef` names a Secret with `username` and `password` (type kubernetes.io/basic-auth); the parent is shown
    them in Proxy-Authorization. Where it has no TLS, that needs `allowPlaintext: true`.
    """

    group: Group = OUR_GROUP
    """API group of the parent's kind."""
    kind: Kind = "Backend"
    """Backend, of whichever group."""
    name: Annotated[str, Field(max_length=253)] = ""
    """Name of the Backend that is the proxy."""
    direct: Bool = False
    """In place of a name: no proxy, though a policy of a wider level names one."""
    namespace: Label | None = None
    """Namespace of the parent. Default: that of the object; another one needs a ReferenceGrant."""
    credentials_ref: SecretObjectReference | None = None
    """Secret with username and password, which the parent is shown as Basic (type kubernetes.io/basic-auth)."""
    allow_plaintext: Bool = False
    """Show them to a parent without TLS, too. Without this, nothing goes through such a parent."""

    def model_post_init(self, context: Any) -> None:
        """There is a name, or `direct: true`; and what may be sent in plain text is there."""
        others = self.model_fields_set - {"direct"}
        if self.direct and others:
            said = ", ".join(sorted(to_camel(name) for name in others))
            raise RefusedValue(
                f"direct: true stands for no parent, and {said} beside it does nothing", "keep one of them"
            )
        if not self.direct and not self.name:
            raise RefusedValue("the parent has no name", "name the Backend that is the proxy, or write direct: true")
        if "/" in self.name or "@" in self.name:
            raise RefusedValue(
                "the name of a parent is that of a Backend, and no URL",
                "make a Backend of the proxy's hostname and port, and a Secret of username and password for "
                "credentialsRef",
            )
        if self.allow_plaintext and self.credentials_ref is None:
            raise RefusedValue(
                "allowPlaintext is for credentials, and there is no credentialsRef", "remove allowPlaintext"
            )
