"""BackendParent: the upstream proxy to a backend, and its credentials."""

from typing import Annotated, Any

from pydantic import Field
from pydantic.alias_generators import to_camel

from egressproxy.config.resources.hostnames import DestinationHostname
from egressproxy.config.resources.meta import OUR_GROUP, Model
from egressproxy.config.resources.object_references import Group, Kind, SecretObjectReference
from egressproxy.config.resources.values import Bool, Cidr, Label, Port, RefusedValue


class NoProxyEntry(Model):
    """Destinations that bypass the parent, by name, or by address if the client named an address."""

    hostnames: Annotated[tuple[DestinationHostname, ...], Field(max_length=256)] = ()
    """Names, exact or as *.suffix (any name below the suffix, and not the suffix itself)."""
    cidrs: Annotated[tuple[Cidr, ...], Field(max_length=256)] = ()
    """Networks, for addresses that clients name. Names are not resolved for this check."""
    ports: Annotated[tuple[Port, ...], Field(max_length=64)] = ()
    """Ports of the entry. Default: every port."""

    def model_post_init(self, context: Any) -> None:
        if not self.hostnames and not self.cidrs:
            raise RefusedValue("the entry names no destination", "add hostnames or cidrs")


class ParentProxyRef(Model):
    """A Backend that is a proxy, and its credentials.

    `credentialsRef` names a Secret with `username` and `password` (type kubernetes.io/basic-auth): an HTTP proxy gets
    them in Proxy-Authorization, a SOCKS5 proxy on request. Without TLS this needs `allowPlaintext: true`.
    """

    group: Group = OUR_GROUP
    """API group of the parent's kind."""
    kind: Kind = "Backend"
    """Backend, of any group."""
    name: Annotated[str, Field(max_length=253)] = ""
    """Name of the proxy's Backend."""
    namespace: Label | None = None
    """Namespace of the parent. Default: that of the object; another one needs a ReferenceGrant."""
    credentials_ref: SecretObjectReference | None = None
    """Secret with the username and password for the parent (type kubernetes.io/basic-auth)."""
    allow_plaintext: Bool = False
    """Whether to send credentials to a parent without TLS. By default such a parent is not used."""
    identity_key_ref: SecretObjectReference | None = None
    """Secret (entry `key`, 32 bytes or more) shared with a parent that is an egressproxy gateway, which gets the
    client's identity in X-Egress-Identity.
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
    """The Backend that is the proxy; or `direct: true` for none, regardless of policies."""

    direct: Bool = False
    """No proxy, though a policy of a wider level names one."""
    fallbacks: Annotated[tuple[ParentProxyRef, ...], Field(max_length=7)] = ()
    """Parents to try in order if connecting to the earlier ones fails."""
    no_proxy: Annotated[tuple[NoProxyEntry, ...], Field(max_length=64)] = ()
    """Destinations that bypass the parents, within the address policy."""

    def model_post_init(self, context: Any) -> None:
        others = self.model_fields_set - {"direct"}
        if self.direct and others:
            fields = ", ".join(sorted(to_camel(name) for name in others))
            raise RefusedValue(f"{fields} does nothing beside direct: true, which is no parent", "keep one of them")
        if not self.direct:
            super().model_post_init(context)
        names = [(each.group, each.kind, each.namespace, each.name) for each in (self, *self.fallbacks)]
        if len(set(names)) != len(names):
            raise RefusedValue("a parent stands more than once in parent and its fallbacks", "keep one of them")
