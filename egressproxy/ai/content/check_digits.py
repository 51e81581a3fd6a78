"""Check digits: whether a number may be one of its issuer. Each takes digits (and capitals) without separators."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

#: The length of an IBAN by country, from SWIFT's IBAN registry.
IBAN_LENGTHS: Final = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29,
    "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29,
    "ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28,
    "HN": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20,
    "LB": 28, "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19,
    "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29,
    "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24,
    "SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20,
    "YE": 30,
}  # fmt: skip

#: Digits with which the numbers of each network begin, and their lengths (ISO/IEC 7812; the networks' own tables).
_CARD = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})"  # Visa
    r"|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|3(?:0[0-5]|095|[689]\d)\d{11}"  # Diners Club
    r"|6(?:011|4[4-9]\d|5\d\d)\d{12,15}"  # Discover, RuPay
    r"|35(?:2[89]|[3-8]\d)\d{12,15}"  # JCB
    r"|62\d{14,17}|8[12]\d{14}"  # UnionPay, RuPay
    r"|(?:50|5[6-8]|6[0137])\d{14,17}"  # Maestro, RuPay
    r"|220[0-4]\d{12,15}"  # Mir
)
#: ASCII digits to what they count at even places from the right.
_DOUBLED: Final = bytes.maketrans(b"0123456789", bytes((0, 2, 4, 6, 8, 1, 3, 5, 7, 9)))
_SINGLE: Final = bytes.maketrans(b"0123456789", bytes(range(10)))
#: The places, from the right.
_FROM_LAST: Final = slice(None, None, -2)
_FROM_LAST_BUT_ONE: Final = slice(-2, None, -2)


def is_luhn(digits: str) -> bool:
    """The checksum of ISO/IEC 7812-1 annex B."""
    row = digits.encode()
    return (sum(row[_FROM_LAST].translate(_SINGLE)) + sum(row[_FROM_LAST_BUT_ONE].translate(_DOUBLED))) % 10 == 0


def is_card(digits: str) -> bool:
    """A card number: prefix and length of a network, and Luhn's checksum."""
    return _CARD.fullmatch(digits) is not None and is_luhn(digits)


def is_iban(text: str) -> bool:
    """An IBAN of the length of its country, with its checksum (ISO 13616-1, ISO/IEC 7064 MOD 97-10)."""
    if IBAN_LENGTHS.get(text[:2]) != len(text):
        return False
    return int("".join(str(int(character, 36)) for character in text[4:] + text[:4])) % 97 == 1


def is_steuer_id(digits: str) -> bool:
    """A German Identifikationsnummer: 11 digits, of the first ten one twice or three times, ISO/IEC 7064 MOD 11,10."""
    if len(digits) != 11 or digits[0] == "0" or len(set(digits[:10])) not in (8, 9):
        return False
    product = 10
    for digit in digits[:10]:
        product = ((int(digit) + product) % 10 or 10) * 2 % 11
    return (11 - product) % 10 == int(digits[10])


def is_nir(text: str) -> bool:
    """A French numéro de sécurité sociale: 13 characters (2A, 2B: Corsica) and their complement modulo 97."""
    if re.fullmatch(r"[1-478]\d\d(?:0[1-9]|1[0-2]|[2-9]\d)\d[\dAB]\d{8}", text) is None:
        return False
    number = text[:13].replace("2A", "19").replace("2B", "18")
    return number.isdigit() and 97 - int(number) % 97 == int(text[13:])


def is_dni(text: str) -> bool:
    """A Spanish DNI (8 digits) or NIE (X, Y or Z and 7 digits) with its letter."""
    if re.fullmatch(r"[0-9XYZ]\d{7}[A-Z]", text) is None:
        return False
    number = int(str("XYZ".find(text[0])) + text[1:8] if text[0] in "XYZ" else text[:8])
    return "TRWAGMYFPDXBNJZSQVHLCKE"[number % 23] == text[8]


#: Values of the characters of a codice fiscale at odd places (D.M. 23 December 1976).
_ODD: Final = dict(zip("0123456789", (1, 0, 5, 7, 9, 13, 15, 17, 19, 21), strict=True)) | dict(
    zip(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23),
        strict=True,
    )
)


def is_codice_fiscale(text: str) -> bool:
    """An Italian codice fiscale: 16 characters, the last one of which checks the others."""
    if len(text) != 16:
        return False
    odd = sum(_ODD[character] for character in text[:15:2])
    even = sum(int(each) if each.isdigit() else ord(each) - ord("A") for each in text[1:15:2])
    return chr(ord("A") + (odd + even) % 26) == text[15]


def is_cpf(digits: str) -> bool:
    """A Brazilian CPF: 11 digits, the last two of which check the others; all the same is none."""
    if len(digits) != 11 or len(set(digits)) == 1:
        return False
    for length in (9, 10):
        total = sum(int(digit) * weight for digit, weight in zip(digits, range(length + 1, 1, -1), strict=False))
        if total * 10 % 11 % 10 != int(digits[length]):
            return False
    return True


def is_pesel(digits: str) -> bool:
    """A Polish PESEL: 11 digits, a date of birth in the first six (century in the month), weights 1 3 7 9."""
    if len(digits) != 11 or not 1 <= int(digits[2:4]) % 20 <= 12 or not 1 <= int(digits[4:6]) <= 31:
        return False
    weighted = zip(map(int, digits), (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1), strict=True)
    return sum(digit * weight for digit, weight in weighted) % 10 == 0


#: The dihedral group D5, and the permutations of its positions (Verhoeff 1969).
_PRODUCTS: Final = [bytes(map(int, row)) for row in (
    "0123456789", "1234067895", "2340178956", "3401289567", "4012395678",
    "5987604321", "6598710432", "7659821043", "8765932104", "9876543210",
)]  # fmt: skip
_PLACES: Final = (
    "0123456789", "1576283094", "5803796142", "8916043527", "9453126870", "4286573901", "2793806415", "7046913258",
)  # fmt: skip


@cache
def _verhoeff() -> tuple[bytes, bytes]:
    """What four digits come to, by their number: at the places 0 to 3 from the right, and at 4 to 7. The places 8 to 11
    are as the first ones, and D5 is associative: three numbers are a checksum. Made once, in 10 ms.
    """
    made = []
    for first in (0, 4):
        come_to = bytes([0])
        for position in range(first, first + 4):
            permuted = [int(_PLACES[position][digit]) for digit in range(10)]
            come_to = bytes([_PRODUCTS[before][each] for each in permuted for before in come_to])
        made.append(come_to)
    return made[0], made[1]


def is_aadhaar(digits: str) -> bool:
    """An Indian Aadhaar number: 12 digits, the first 2 to 9, Verhoeff's checksum."""
    if len(digits) != 12 or digits[0] in "01":
        return False
    last, middle = _verhoeff()
    check = _PRODUCTS[last[int(digits[8:])]][middle[int(digits[4:8])]]
    return _PRODUCTS[check][last[int(digits[:4])]] == 0


def is_resident_id_of_china(text: str) -> bool:
    """A Chinese resident identity number: region, date of birth, order, ISO/IEC 7064 MOD 11-2 (GB 11643)."""
    if re.fullmatch(r"[1-8]\d{5}(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])\d{3}[\dX]", text) is None:
        return False
    total = sum(int(digit) * (2 ** (17 - position) % 11) for position, digit in enumerate(text[:17]))
    return "10X98765432"[total % 11] == text[17]
