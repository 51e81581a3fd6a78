"""Telephone numbers, by the numbering plans of `phonenumbers` (Google's libphonenumber).

With a country code (`+49 …`, `0049 …`) everywhere; as they are dialled inside a country only where the regions say so.
The plans are compiled from the library's metadata: its own parser takes a hundred times as long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Final

from egressproxy.filters.settings import Checked, Within

_CANDIDATE = re.compile(r"\+? ?\(?[0-9]{1,17}(?:[ ./()-]{1,2}[0-9]{1,15}){0,6}(?![0-9])")
#: Digits of a number with its country code: ITU-T E.164 section 6.1.
_MAX_DIGITS: Final = 15
_MIN_DIGITS: Final = 7
#: What a plan is made of: groups and counts, and what stands for one digit.
_PLAN_TOKEN = re.compile(r"\(\?:|\{[0-9,]+\}|\\d|\[[^\]]*\]|[0-9]")
_SEPARATORS: Final = dict.fromkeys(map(ord, "+ ./()-"))
#: What parts two digits.
_PARTS: Final = "[ ./()-]{0,2}"
#: Characters of plans that are looked for with separators: a region has some 2,000, which compile in ten milliseconds.
_MAX_PLANS: Final = 10_000


class Phones:
    """Finds the end of a number: a NumberKind. Raises ValueError for a region that is not known."""

    __slots__ = ("_national", "form")

    def __init__(self, regions: tuple[str, ...]) -> None:
        for region in regions:
            _known(region)
        plans = "|".join(_national_plan(region) for region in regions)
        self._national = re.compile(plans) if plans else None
        self.form = r"(?<=\+)|(?<=0)[ ./()-]{0,2}0|(?<=\()0[ ./()-]{0,2}0"
        if len(plans) > _MAX_PLANS:
            self.form = ""
        elif plans:  # which holds at the first character, and not behind it
            self.form += f"|(?<=(?={_PARTS}(?:{_PLAN_TOKEN.sub(_parted, plans)})(?![0-9A-Za-z])).)"

    def __call__(self, text: str, at: int) -> int:
        """The end of a number that begins here; 0: none does. Of groups too many the last ones are left out."""
        if self._national is None and text[at] not in "+0(":
            return 0  # no country's code
        match = _CANDIDATE.match(text, at)
        if match is None or not _may_begin(text, at):
            return 0
        candidate = match[0]
        if candidate[0] == "(" and ")" not in candidate:
            return 0
        digits = candidate.translate(_SEPARATORS)
        size = len(digits)
        while size >= _MIN_DIGITS:
            end = at + len(candidate)
            if (
                size <= _MAX_DIGITS + 2
                and self._is_number(candidate, digits[:size])
                and not text[end : end + 1].isalnum()
            ):
                return end
            shorter = candidate.rstrip("0123456789")
            size -= len(candidate) - len(shorter)
            candidate = shorter.rstrip(" ./()-")
        return 0

    def _is_number(self, candidate: str, digits: str) -> bool:
        if candidate[0] == "+":
            return _is_international(digits.replace("0", "", 1) if "(0)" in candidate else digits)
        if digits.startswith("00") and _is_international(digits[2:]):
            return True
        return self._national is not None and self._national.fullmatch(digits) is not None


@cache
def known_regions() -> frozenset[str]:
    """Codes of regions (ISO 3166-1) that have a plan."""
    import phonenumbers  # tens of milliseconds, and only who looks for telephone numbers needs it

    return frozenset(phonenumbers.SUPPORTED_REGIONS)


def _known(region: str) -> str:
    if region not in known_regions():
        raise ValueError(f"{region!r} is no region with a numbering plan: write two letters, such as DE or US")
    return region


#: In a config: a code of a region.
Region = Annotated[str, Within(pattern=r"^[A-Z]{2}$"), Checked(_known)]


def _is_international(digits: str) -> bool:
    """Whether a country's code stands first, and what follows is of the form of its numbers."""
    if len(digits) > _MAX_DIGITS:
        return False
    for length in (1, 2, 3):
        plans = _plans_of(digits[:length])
        if plans:
            return any(plan.fullmatch(digits, length) is not None for plan in plans)
    return False


@cache
def _plans_of(country_code: str) -> tuple[re.Pattern[str], ...]:
    """The forms of the numbers of a country code; () if there is none. There are 1110 codes at most."""
    import phonenumbers

    regions = phonenumbers.COUNTRY_CODE_TO_REGION_CODE.get(int(country_code or 0), ())
    return tuple(re.compile(_forms(metadata)) for metadata in map(_metadata, regions, (country_code,) * len(regions)))


@cache
def _national_plan(region: str) -> str:
    """The form of numbers as they are dialled inside a region: with its national prefix, where it has one but "1"."""
    metadata = _metadata(region, "")
    prefix = metadata.national_prefix or ""
    begin = re.escape(prefix) if prefix not in ("", "1") else f"(?:{re.escape(prefix)})?" if prefix else ""
    return f"{begin}(?:{_forms(metadata)})"


def _parted(token: re.Match[str]) -> str:
    """A token of a plan; separators may stand behind a digit. `re` passes over a branch by its first digit."""
    return token[0] if token[0][0] in "({" else f"(?:{token[0]}{_PARTS})"


def _metadata(region: str, country_code: str) -> Any:
    import phonenumbers

    if region == "001":
        return phonenumbers.PhoneMetadata.metadata_for_nongeo_region(int(country_code))
    return phonenumbers.PhoneMetadata.metadata_for_region(region)


def _forms(metadata: Any) -> str:
    return "|".join(f"(?:{pattern})" for pattern in dict.fromkeys(_patterns(metadata)))


def _patterns(metadata: Any) -> Iterator[str]:
    """The patterns of the kinds of numbers that people have; not those of short codes and of premium services alone."""
    for kind in (
        metadata.fixed_line, metadata.mobile, metadata.toll_free, metadata.premium_rate, metadata.shared_cost,
        metadata.personal_number, metadata.voip, metadata.pager, metadata.uan, metadata.voicemail,
    ):  # fmt: skip
        if kind is not None and kind.national_number_pattern:
            yield kind.national_number_pattern


def _may_begin(text: str, at: int) -> bool:
    """Whether what stands before leaves a number whole: no word, no amount of money, no decimal fraction."""
    return at == 0 or not (text[at - 1].isalnum() or text[at - 1] in "+$€£.,")
