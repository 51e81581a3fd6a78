"""PIIDetectorConfig: what PIIDetector is told in a manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from egressproxy.ai.content.entities import ENTITIES, check_countries
from egressproxy.ai.content.national_ids import COUNTRIES
from egressproxy.ai.content.own_patterns import Expression
from egressproxy.ai.content.phones import Region
from egressproxy.filters.settings import CalledBackendRef, FieldName, FilterConfig, Within
from egressproxy.ir.policy import FieldFault

Action = Literal["Block", "Redact", "Placeholder", "Report"]
_NAME = r"^[A-Z][A-Z0-9_]{0,31}$"


@dataclass(frozen=True, slots=True)
class Entity(FilterConfig):
    """What is looked for, and what is done with it.

    `Block` refuses the message; `Redact` writes `[EMAIL]` instead; `Placeholder` writes `<EMAIL_1>`, and the value is
    put back in the answer; `Report` only counts.
    """

    name: Annotated[str, Within(pattern=_NAME)]
    action: Action = "Redact"


@dataclass(frozen=True, slots=True)
class OwnEntity(FilterConfig):
    """What an expression of RE2 finds. A match has at most `max_length` characters: a stream holds back as many."""

    name: Annotated[str, Within(pattern=_NAME)]
    pattern: Expression
    action: Action = "Redact"
    max_length: Annotated[int, Within(ge=1, le=256)] = 64


@dataclass(frozen=True, slots=True)
class PresidioEngine(FilterConfig):
    """A Presidio analyzer that looks at requests, too. `entities` have its own names (PERSON, LOCATION …).

    `path` is that of its REST API, `language` a code that it has a model for, `score_threshold` the least confidence
    that counts, `timeout` that of one call in seconds.
    """

    backend_ref: CalledBackendRef
    entities: Annotated[tuple[Entity, ...], Within(min_length=1)]
    path: Annotated[str, Within(pattern=r"^/[!-~]*$")] = "/analyze"
    language: Annotated[str, Within(pattern=r"^[a-z]{2}$")] = "en"
    score_threshold: Annotated[float, Within(ge=0, le=1)] = 0.5
    timeout: Annotated[float, Within(gt=0, le=60)] = 2.0


@dataclass(frozen=True, slots=True)
class PIIDetectorConfig(FilterConfig):
    """What is looked for, where, and what is done with it.

    `apply_to`: the messages that are looked at; placeholders are put back in any case. `regions`: where telephone
    numbers are found as they are dialled inside of the region. `countries`: those whose NATIONAL_ID is looked for.
    `headers`: fields of the request that are looked at; `query`: whether its query is. `unreadable`: what is done with
    bodies, tunnels and upgrades that cannot be looked at. `max_body_bytes`: of what is looked at whole; None:
    MAX_BUFFERED_BYTES of a request, and 8 MiB of an answer.
    """

    entities: tuple[Entity, ...] = ()
    patterns: tuple[OwnEntity, ...] = ()
    presidio: PresidioEngine | None = None
    apply_to: Literal["Requests", "Responses", "Both"] = "Requests"
    regions: tuple[Region, ...] = ()
    countries: tuple[Annotated[str, Within(pattern=r"^[A-Z]{2}$")], ...] = COUNTRIES
    headers: tuple[FieldName, ...] = ()
    query: bool = True
    unreadable: Literal["Deny", "Allow"] = "Deny"
    max_body_bytes: Annotated[int, Within(ge=1024, le=64 * 1024 * 1024)] | None = None

    def __post_init__(self) -> None:
        written: list[tuple[str, tuple[str | int, ...]]] = [
            *((each.name, ("entities", index, "name")) for index, each in enumerate(self.entities)),
            *((each.name, ("patterns", index, "name")) for index, each in enumerate(self.patterns)),
        ]
        if self.presidio is not None:
            theirs = enumerate(self.presidio.entities)
            written += ((each.name, ("presidio", "entities", index, "name")) for index, each in theirs)
        if not written:
            raise ValueError("`entities`, `patterns` or `presidio` has to say what is looked for")
        seen: set[str] = set()
        for name, path in written:
            if name in seen:
                raise FieldFault(f"{name} is there twice: an entity has one action", *path)
            seen.add(name)
            if path[0] == "entities" and name not in ENTITIES:
                why = f"{name} is no entity; known are {', '.join(ENTITIES)}; write `patterns` for others"
                raise FieldFault(why, *path)
        check_countries(self.countries)
        if self.presidio is not None and self.apply_to != "Requests":
            why = "`presidio` looks at requests alone: a stream cannot wait for it; set `applyTo: Requests`"
            raise FieldFault(why, "applyTo")
