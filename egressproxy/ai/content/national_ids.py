"""Identifiers of people that countries give out: those that a form or check digits tell from other numbers.

US: Social Security Number (in three parts, ranges of the SSA). GB: National Insurance number. DE:
Identifikationsnummer. FR: numéro de sécurité sociale. ES: DNI and NIE. IT: codice fiscale. CH: AHV number. SE:
personnummer. PL: PESEL. BR: CPF. IN: Aadhaar. CN: resident identity number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from typing import Final, NamedTuple

from egressproxy.ai.content import check_digits
from egressproxy.ai.content.numbers import NumberKind, stands_alone

_SEPARATORS: Final = dict.fromkeys(map(ord, " .+-"))
_END: Final = r"(?![0-9A-Za-z])"


class _Form(NamedTuple):
    """What finds the end of a number, and what stands behind its first digit, which `Numbers` looks at."""

    end_of: NumberKind
    rest: str


def _number(pattern: str, rest: str, check: Callable[[str], bool] | None = None) -> _Form:
    return _Form(_finder(re.compile(pattern + _END), check), rest)


def _finder(compiled: re.Pattern[str], check: Callable[[str], bool] | None) -> NumberKind:
    """What finds the end of this form; `check` gets it without separators, in capitals."""

    def end_of(text: str, at: int) -> int:
        match = compiled.match(text, at)
        if match is None or not stands_alone(text, at):
            return 0
        return match.end() if check is None or check(match[0].translate(_SEPARATORS).upper()) else 0

    return end_of


def _is_ahv(digits: str) -> bool:
    """EAN-13."""
    return sum(int(digit) * (3 if position % 2 else 1) for position, digit in enumerate(digits)) % 10 == 0


_NUMBERS: Final[dict[str, _Form]] = {
    "US": _number(
        r"(?!000|666|9)[0-9]{3}([- ])(?!00)[0-9]{2}\1(?!0000)[0-9]{4}",
        r"(?<!9)[0-9]{2}(?:-[0-9]{2}-|[ ][0-9]{2}[ ])[0-9]{4}",
    ),
    "DE": _number(
        r"[0-9]{2} ?[0-9]{3} ?[0-9]{3} ?[0-9]{3}",
        r"(?<=[1-9])[0-9] ?[0-9]{3} ?[0-9]{3} ?[0-9]{3}",
        check_digits.is_steuer_id,
    ),
    "FR": _number(
        r"[1-478] ?[0-9]{2} ?[0-9]{2} ?[0-9][0-9ABab] ?[0-9]{3} ?[0-9]{3} ?[0-9]{2}",
        r"(?<=[1-478]) ?[0-9]{2} ?[0-9]{2} ?[0-9][0-9ABab] ?[0-9]{3} ?[0-9]{3} ?[0-9]{2}",
        check_digits.is_nir,
    ),
    "ES": _number(r"[0-9]{8}[ -]?[A-Za-z]", r"[0-9]{7}[ -]?[A-Za-z]", check_digits.is_dni),
    "CH": _number(r"756\.?[0-9]{4}\.?[0-9]{4}\.?[0-9]{2}", r"56\.?[0-9]{4}\.?[0-9]{4}\.?[0-9]{2}", _is_ahv),
    "SE": _number(
        r"(?:19|20)?[0-9]{2}(?:0[1-9]|1[0-2])(?:[0-8][0-9]|9[01])[-+][0-9]{4}",
        r"[0-9]{5}(?:[0-9]{2})?[-+][0-9]{4}",
        lambda digits: check_digits.is_luhn(digits[-10:]),
    ),
    "PL": _number(r"[0-9]{11}", r"[0-9]{10}(?![0-9])", check_digits.is_pesel),
    "BR": _number(
        r"[0-9]{3}\.?[0-9]{3}\.?[0-9]{3}-?[0-9]{2}", r"[0-9]{2}\.?[0-9]{3}\.?[0-9]{3}-?[0-9]{2}", check_digits.is_cpf
    ),
    "IN": _number(
        r"[2-9][0-9]{3}([ -]?)[0-9]{4}\1[0-9]{4}",
        r"(?<=[2-9])[0-9]{3}(?:[0-9]{8}|[ ][0-9]{4}[ ][0-9]{4}|-[0-9]{4}-[0-9]{4})(?![0-9A-Za-z])",
        check_digits.is_aadhaar,
    ),
    "CN": _number(r"[1-8][0-9]{16}[0-9Xx]", r"[0-9]{16}[0-9Xx]", check_digits.is_resident_id_of_china),
}
#: Those that begin with letters, with what tells how (see `Lettered`).
_LETTERED: Final[dict[str, tuple[str, Callable[[str], bool] | None, tuple[bytes, ...]]]] = {
    "GB": (
        r"(?![DFIQUV])[A-Z](?![DFIQUVO])[A-Z](?<!BG|GB|NK|KN|TN|NT|ZZ) ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D]",
        None,
        tuple(map(b"aa%b00%b00%b00".__mod__, product((b"", b" "), repeat=3))),
    ),
    "IT": (
        r"[A-Z]{6}[0-9LMNP-V]{2}[A-EHLMPRST][0-9LMNP-V]{2}[A-Z][0-9LMNP-V]{3}[A-Z]",
        check_digits.is_codice_fiscale,
        (b"aaaaaa0",),
    ),
    "ES": (r"[XYZ]-?[0-9]{7}-?[A-Z]", check_digits.is_dni, (b"a0000000", b"a-0000000")),
}
COUNTRIES: Final = tuple(sorted({*_NUMBERS, *_LETTERED}))


def numbers_of(countries: tuple[str, ...]) -> list[_Form]:
    """What finds the numbers of these countries that begin with a digit, with their forms."""
    return [_NUMBERS[country] for country in countries if country in _NUMBERS]


def lettered_of(countries: tuple[str, ...]) -> list[tuple[NumberKind, tuple[bytes, ...]]]:
    """What finds those that begin with letters, with their shapes."""
    found = [_LETTERED[country] for country in countries if country in _LETTERED]
    flags = re.IGNORECASE | re.ASCII
    return [(_finder(re.compile(pattern + _END, flags), check), shapes) for pattern, check, shapes in found]
