"""Whose count an exchange adds to: what `per` names, as one text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

from egressproxy.model.exchange import Exchange
from egressproxy.model.shares import identity_of

Per = Literal["Gateway", "Route", "Backend", "Identity", "Namespace", "Model", "Header"]
#: What is known only when a backend was chosen, and what only the body (or the path) of a request to a provider says.
NEEDS_BACKEND: Final = "Backend"
NEEDS_BODY: Final = "Model"
#: What follows from who the client is alone, where it has a name.
OF_CLIENT: Final = frozenset(("Identity", "Namespace"))

#: Gives the text of an exchange; the model is "" where it is not known.
KeyText = Callable[[Exchange, str], bytes]

#: In front of each part is its length, so that two lists of parts never have one text.
_PART: Final = "%d:%s"


def key_text(per: Sequence[Per], header: str = "") -> KeyText:
    """What makes the text of a key. `header` is the name of the field for Header.

    An identity is what `model.shares.identity_of` says.
    """
    field = header.lower().encode()
    parts: list[Callable[[Exchange, str], str]] = []
    for name in per:
        if name == "Header":
            parts.append(lambda x, _model: b",".join(x.request.fields.get_all(field)).decode("latin-1"))
        else:
            parts.append(_PARTS[name])
    if not parts:
        return lambda _x, _model: b""
    if len(parts) == 1:
        only = parts[0]
        return lambda x, model: only(x, model).encode("utf-8", "surrogatepass")

    def text(x: Exchange, model: str) -> bytes:
        said = [part(x, model) for part in parts]
        return "".join([_PART % (len(part), part) for part in said]).encode("utf-8", "surrogatepass")

    return text


def _route(x: Exchange, _model: str) -> str:
    return x.route if x.route != "-" else f"{x.gateway} -"


_PARTS: Final[dict[str, Callable[[Exchange, str], str]]] = {
    "Gateway": lambda x, _model: x.gateway,
    "Route": _route,
    "Backend": lambda x, _model: x.backend,
    "Identity": lambda x, _model: identity_of(x),
    "Namespace": lambda x, _model: x.identity.namespace,
    "Model": lambda _x, model: model.strip().casefold(),  # Azure's servers look at no case
}
