"""BackendParent: the upstream gateway through which something is reached, and what it is shown to be let in."""

from typing import Annotated, Any

from pydantic import Field
from pydantic.alias_generators import to_camel

from egressproxy.config.resources.hostnames import DestinationHostname
from egressproxy.config.resources.meta import OUR_GROUP, Model
from egressproxy.config.resources.object_references import Group, Kind, SecretObjectReference
from egressproxy.config.resources.values import Bool, Cidr, Label, Port, RefusedValue


class NoProxyEntry(Model):
    """Destinations that no parent is asked for, by name, or by address where a client names an address."""

    hostnames: Annotated[tuple[DestinationHostname, ...], Field(max_length=256)] = ()
    """Names, exact or as *.suffix (any name below the suffix, and not the suffix itself)."""
    cidrs: Annotated[tuple[Cidr, ...], Field(max_length=256)] = ()
    """Networks, for addresses that clients name. Names are not resolved for it."""
    ports: Annotated[tuple[Port, ...], Field(max_length=64)] = ()
    """Ports that the entry is for. Left out: every port."""

    def model_post_init(self, context: Any) -> None:
        if not self.hostnames and not self.cidrs:
            raise RefusedValue("the entry names no destination", "add hostnames or cidrs")


class ParentProxyRef(Model):
    """A Backend that is a proxy, and what it is shown.

    `credentialsRef` names a Secret with `username` and `password` (type kubernetes.io/basic-auth): an HTTP proxy is
    shown them in Proxy-Authorization, a SOCKS5 proxy where it asks for them. Where it has no TLS, that needs
    `allowPlaintext: true`.
    """

    group: Group = OUR_GROUP
    """API group of the parent's kind."""
    kind: Kind = "Backend"
    """Backend, of whichever group."""
    name: Annotated[str, Field(max_length=253)] = ""
    """Name of the Backend that is the proxy."""
    namespace: Label | None = None
    """Namespace of the parent. Default: that of the object; another one needs a ReferenceGrant."""
    credentials_ref: SecretObjectReference | None = None
    """Secret with username and password, which the parent is shown (type kubernetes.io/basic-auth)."""
    allow_plaintext: Bool = False
    """Show them to a parent without TLS, too. Without this, nothing goes through such a parent."""
    identity_key_ref: SecretObjectReference | None = None
    """Secret (entry `key`, 32 bytes or more) that a gateway of ours which is the parent has, too: it is told who the
    client is, in X-Egress-Identity.
    """

    def model_post_init(self, context: Any) -> None:
        if not self.name:
            raise RefusedValue("the parent has no name", "name the Backend that is the proxy, or write direct: true")
        if "/" in self.name or "@" in self.name:
            raise RefusedValue(
                "the name of a parent is that of a Backend, and no URL",
                "make a Backend of the proxy's hostname and port, and a Secret of username and password for "
                "credentialsRef",
            )
        if self.allow_plaintext and self.credentials_ref is None:
            raise RefusedValue("allowPlaintext is for credentialsRef, which is not there", "remove allowPlaintext")


class BackendParent(ParentProxyRef):
    """The Backend through which this one is reached; or `direct: true`: none, whatever a policy says."""

    direct: Bool = False
    """In place of a name: no proxy, though a policy of a wider level names one."""
    fallbacks: Annotated[tuple[ParentProxyRef, ...], Field(max_length=7)] = ()
    """Parents that are asked, in this order, where those before cannot be connected to."""
    no_proxy: Annotated[tuple[NoProxyEntry, ...], Field(max_length=64)] = ()
    """Destinations that are reached past the parents, as the address policy allows."""

    def model_post_init(self, context: Any) -> None:
        others = self.model_fields_set - {"direct"}
        if self.direct and others:
            said = ", ".join(sorted(to_camel(name) for name in others))
            raise RefusedValue(f"{said} does nothing beside direct: true, which is no parent", "keep one of them")
        if not self.direct:
            super().model_post_init(context)
        names = [(each.group, each.kind, each.namespace, each.name) for each in (self, *self.fallbacks)]
        if len(set(names)) != len(names):
            raise RefusedValue("a parent stands more than once in parent and its fallbacks", "keep one of them")
