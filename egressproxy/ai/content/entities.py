"""Entities: what can be looked for, by the names of a configuration, and the scanner that looks for a set of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from egressproxy.ai.content.addresses import Emails, IPAddresses
from egressproxy.ai.content.lettered import IBAN_SHAPES, Lettered, iban_at
from egressproxy.ai.content.national_ids import COUNTRIES, lettered_of, numbers_of
from egressproxy.ai.content.numbers import CARD_FORM, NumberKind, Numbers, card_at
from egressproxy.ai.content.own_patterns import OwnPatterns
from egressproxy.ai.content.secret_keys import SecretKeys
from egressproxy.ai.content.spans import Detector, Scanner
from egressproxy.ir.policy import FieldFault

KEYS: Final = frozenset(("API_KEY", "JWT", "PRIVATE_KEY"))
#: Name -> what it is.
ENTITIES: Final[Mapping[str, str]] = {
    "EMAIL": "e-mail addresses",
    "PHONE": "telephone numbers: with a country code, and those of `regions` as they are dialled there",
    "CARD": "card numbers: prefix and length of a network, and Luhn's checksum",
    "IBAN": "bank accounts (ISO 13616), with their checksum",
    "NATIONAL_ID": "identifiers of people, of `countries`",
    "IP_ADDRESS": "IPv4 and IPv6 addresses",
    "API_KEY": "keys and tokens of providers that publish their form",
    "JWT": "JSON Web Tokens",
    "PRIVATE_KEY": "private keys in PEM",
}

#: The value of a member of JSON, or of a form, whose name says that it is a secret.
_NAMED: Final = re.compile(
    r"""((?:password|passwd|secret|api[-_]?key|apikey|authorization|credential|access[-_]?token|auth[-_]?token|"""
    r"""refresh[-_]?token|client[-_]?secret|private[-_]?key)[\w-]{0,32}["']?\s{0,8}[:=]\s{0,8})("(?:[^"\\]|\\.)*"|[^\s,;&}"]+)""",
    re.IGNORECASE,
)


def check_countries(countries: Iterable[str]) -> None:
    """Raises FieldFault (at `countries[N]`) for one whose identifiers are not known."""
    for index, country in enumerate(countries):
        if country not in COUNTRIES:
            why = f"{country!r} has no identifiers here; there are those of {', '.join(COUNTRIES)}"
            raise FieldFault(why, "countries", index)


def scanner_of(
    entities: Iterable[str],
    *,
    regions: tuple[str, ...] = (),
    countries: tuple[str, ...] = COUNTRIES,
    patterns: Iterable[tuple[str, str, int]] = (),
) -> Scanner:
    """A scanner for these entities. `patterns` are own ones: name, expression and the longest match in characters.

    Of what is the same text and could be two things, the first in the order of ENTITIES is taken; own patterns come
    before all. Raises ValueError for an entity, region or country that is not known, and for a wrong expression.
    """
    names = frozenset(entities)
    for entity in sorted(names - ENTITIES.keys()):
        raise ValueError(f"{entity!r} is no entity; known are {', '.join(ENTITIES)}, and the names of `patterns`")
    check_countries(countries)
    own = list(patterns)
    detectors: list[Detector] = [OwnPatterns(own)] if own else []
    if names & KEYS:
        detectors.append(SecretKeys(names & KEYS))
    if "EMAIL" in names:
        detectors.append(Emails())
    numbers: list[tuple[str, NumberKind, str]] = []
    letters: list[tuple[str, NumberKind, tuple[bytes, ...]]] = []
    if "CARD" in names:
        numbers.append(("CARD", card_at, CARD_FORM))
    if "IBAN" in names:
        letters.append(("IBAN", iban_at, IBAN_SHAPES))
    if "NATIONAL_ID" in names:
        numbers += [("NATIONAL_ID", *form) for form in numbers_of(countries)]
        letters += [("NATIONAL_ID", *form) for form in lettered_of(countries)]
    if "IP_ADDRESS" in names:
        detectors.append(IPAddresses())
    if "PHONE" in names:
        from egressproxy.ai.content.phones import Phones

        phones = Phones(regions)
        numbers.append(("PHONE", phones, phones.form))
    if letters:
        detectors.append(Lettered(letters))
    if numbers:
        detectors.append(Numbers(numbers))
    return Scanner(detectors)


class Redactor:
    """Replaces values in text: those of these `entities`, and those with the name of a secret."""

    __slots__ = ("_scanner",)

    def __init__(self, entities: Iterable[str] = ENTITIES) -> None:
        self._scanner: Scanner = scanner_of(entities)

    def __call__(self, text: str) -> str:
        """The text with `[ENTITY]` for each, and `[SECRET]` for values whose name says it."""
        named = _NAMED.sub(lambda found: f'{found.group(1)}"[SECRET]"', text)
        return self._scanner.replaced(named, lambda entity, _value: f"[{entity}]")
