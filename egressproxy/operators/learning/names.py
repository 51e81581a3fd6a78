"""Names: the domain that a name belongs to, labels that look random, and names that look like other ones. Pure.

Domains are estimated without a list (`domain_of`), since they only group names here. What opens `*.suffix` asks the
Public Suffix List (`PublicSuffixes`), and opens nothing for a name whose suffix the list does not know.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

#: Where distributions keep the list (Debian: the package `publicsuffix`).
PUBLIC_SUFFIX_FILE: Final = Path("/usr/share/publicsuffix/public_suffix_list.dat")
#: The list has two parts; without the second one, `*.github.io` would look like the domain of one owner.
_PRIVATE_PART: Final = "===BEGIN PRIVATE DOMAINS==="
#: Labels below which countries register names.
_SECOND_LEVEL: Final = frozenset({"ac", "co", "com", "edu", "go", "gob", "gov", "ne", "net", "nom", "or", "org"})

#: A plain name as policies write it. A last label that is a number is an address to some resolvers.
HOSTNAME: Final = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*(?!(?:[0-9]+|0x[0-9a-f]*)\Z)[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
)
#: Labels of fewer characters carry too little data to matter.
RANDOM_LENGTH: Final = 16
#: More characters than this below the domain carry data, whatever they look like.
LONG_NAME: Final = 60
#: The 180 most usual pairs of letters in English. Names made of words have 60 to 90 % of their neighbours in this set,
#: random letters a quarter, digits none.
_USUAL_SHARE: Final = 0.35
_USUAL: Final = frozenset((
    "th", "he", "in", "er", "an", "re", "on", "at", "en", "nd", "ti", "es", "or", "te", "of", "ed", "is", "it",
    "al", "ar", "st", "to", "nt", "ng", "se", "ha", "as", "ou", "io", "le", "ve", "co", "me", "de", "hi", "ri",
    "ro", "ic", "ne", "ea", "ra", "ce", "li", "ch", "ll", "be", "ma", "si", "om", "ur", "ca", "el", "ta", "la",
    "ns", "di", "fo", "ho", "pe", "ec", "pr", "no", "ct", "us", "ac", "ot", "il", "tr", "ly", "nc", "et", "ut",
    "ss", "so", "rs", "un", "lo", "wa", "ge", "ie", "wh", "ee", "wi", "em", "ad", "ol", "rt", "po", "we", "na",
    "ul", "ni", "ts", "mo", "ow", "pa", "im", "mi", "ai", "sh", "ir", "su", "id", "os", "iv", "ia", "am", "fi",
    "ci", "vi", "pl", "ig", "tu", "ev", "ld", "ry", "mp", "fe", "bl", "ab", "gh", "ty", "op", "wo", "sa", "ay",
    "ex", "ke", "fr", "oo", "av", "ag", "if", "ap", "gr", "od", "bo", "sp", "rd", "do", "uc", "bu", "ei", "ov",
    "by", "rm", "ep", "tt", "oc", "fa", "ef", "cu", "rn", "sc", "gi", "da", "yo", "cr", "cl", "du", "ga", "qu",
    "ue", "ff", "ba", "ey", "ls", "va", "um", "pp", "ua", "up", "lu", "go", "ht", "ru", "ug", "ds", "lt", "pi",
))  # fmt: skip
#: Characters that pass for others: read as the letter that they look like (Unicode TR 39, the usual ones).
_LOOKS: Final = str.maketrans(
    {
        "0": "o", "1": "l", "3": "e", "5": "s", "\u0430": "a", "\u0435": "e", "\u043e": "o", "\u0440": "p",
        "\u0441": "c", "\u0443": "y", "\u0445": "x", "\u0456": "i", "\u0458": "j", "\u0455": "s", "\u04bb": "h",
        "\u0501": "d", "\u051b": "q", "\u051d": "w", "\u03bf": "o", "\u03b1": "a", "\u03bd": "v", "\u0131": "i",
        "\u0261": "g", "\u043a": "k", "\u043c": "m", "\u0442": "t", "\u0432": "b", "\u043d": "h",
    }
)  # fmt: skip
#: Endings that are mistaken for others.
_ENDINGS: Final = {"co": "com", "cm": "com", "om": "com", "ne": "net", "og": "org"}
#: Shorter owners' labels have neighbours by chance (`ibm`, `ibn`).
_LEAST_OWNER: Final = 4


def domain_of(host: str) -> str:
    """The domain that one owner has registered, estimated: the last two labels, three below `co.uk` and the like."""
    labels = host.rsplit(".", 3)
    if len(labels) > 2 and len(labels[-1]) == 2 and labels[-2] in _SECOND_LEVEL:
        return ".".join(labels[-3:])
    return ".".join(labels[-2:])


def carries_data(host: str) -> bool:
    """Whether a label looks random, or the name is long: it may carry data to the owner's name server."""
    below = host.removesuffix(domain_of(host))
    return len(below) > LONG_NAME or any(is_random(label) for label in host.split(".")[:-1])


def is_random(label: str) -> bool:
    """Whether a label of 16 or more characters looks unlike words."""
    parts = [part for part in re.split("[-_]", label) if part]
    pairs = [part[at : at + 2] for part in parts for at in range(len(part) - 1)]
    return len(label) >= RANDOM_LENGTH and sum(pair in _USUAL for pair in pairs) < len(pairs) * _USUAL_SHARE


class Lookalikes:
    """Finds names that differ in one character from a domain in this collection, or carry it in another domain."""

    def __init__(self, domains: Iterable[str]) -> None:
        self._domains = frozenset(domains)
        self._near: dict[str, set[str]] = {}
        for domain in sorted(self._domains):
            for key in _deletions(domain):
                self._near.setdefault(key, set()).add(domain)
        self._skeletons: dict[str, str] = {}
        for domain in sorted(self._domains, reverse=True):
            self._skeletons[_skeleton(domain)] = domain

    def of(self, host: str) -> list[str]:
        """The domains that this name could be taken for, in order."""
        own = domain_of(host)
        found = {domain for key in _deletions(own) for domain in self._near.get(key, ()) if _is_near(own, domain)}
        same = self._skeletons.get(_skeleton(own))
        found |= {same} if same is not None else set()
        labels = host.split(".")
        for start in range(len(labels) - 2):
            for length in (2, 3):
                inside = ".".join(labels[start : start + length])
                if start + length < len(labels) and inside in self._domains:
                    found.add(inside)
        found.discard(own)
        return sorted(found)


def _deletions(domain: str) -> Iterator[str]:
    owner, _, suffix = domain.partition(".")
    if len(owner) >= _LEAST_OWNER:
        yield domain
        yield from (owner[:at] + owner[at + 1 :] + "." + suffix for at in range(len(owner)))


def _is_near(one: str, other: str) -> bool:
    """Whether one edit, or a swap of neighbours, leads from one to the other. Digits for digits are series of names."""
    if one == other or abs(len(one) - len(other)) > 1:
        return False
    if len(one) != len(other):
        short, long = sorted((one, other), key=len)
        return any(long[:at] + long[at + 1 :] == short and not long[at].isdigit() for at in range(len(long)))
    differ = [at for at in range(len(one)) if one[at] != other[at]]
    if len(differ) == 1:
        return not (one[differ[0]].isdigit() and other[differ[0]].isdigit())
    first, last = differ[0], differ[-1]
    return len(differ) == 2 and last == first + 1 and one[first] == other[last] and one[last] == other[first]


def _skeleton(domain: str) -> str:
    owner, _, suffix = domain.partition(".")
    if owner.startswith("xn--"):
        try:
            owner = owner[4:].encode().decode("punycode")
        except UnicodeError:
            return domain
    return owner.translate(_LOOKS).replace("rn", "m").replace("vv", "w") + "." + _ENDINGS.get(suffix, suffix)


class PublicSuffixes:
    """The Public Suffix List (https://publicsuffix.org/list/): below which names anybody may register one."""

    def __init__(self, text: str) -> None:
        """Raises ValueError for a text without both parts of the list."""
        if _PRIVATE_PART not in text:
            raise ValueError(f'the line "{_PRIVATE_PART}" is missing: it is not the whole Public Suffix List')
        lines = (line.split(None, 1)[0] for line in text.splitlines() if line.strip() and not line.startswith("//"))
        self._rules: Collection[str] = frozenset(_ascii(line) for line in lines)
        #: Below these a suffix begins: `amazonaws.com` has `s3.amazonaws.com` below it.
        self._above: Collection[str] = frozenset(
            above for rule in self._rules for above in _parents(rule.lstrip("!").removeprefix("*."))
        )

    def is_owned(self, domain: str) -> bool:
        """Whether one owner has all names below this domain: it lies below a suffix of the list, and above none. False
        where the list does not know the last label.
        """
        suffix = self._suffix_length(domain.split("."))
        return suffix is not None and domain.count(".") + 1 > suffix and domain not in self._above

    def _suffix_length(self, labels: list[str]) -> int | None:
        """How many labels of the name are its public suffix: of all rules that match, the longest; exceptions first."""
        found = None
        for count in range(1, len(labels) + 1):
            tail = ".".join(labels[-count:])
            if f"!{tail}" in self._rules:
                return count - 1
            wildcard = "*." + tail.partition(".")[2]
            if tail in self._rules or (count > 1 and wildcard in self._rules):
                found = count
        return found


def _parents(domain: str) -> Iterator[str]:
    while domain := domain.partition(".")[2]:
        yield domain


def _ascii(rule: str) -> str:
    if rule.isascii():
        return rule
    labels = rule.split(".")
    return ".".join(label if label.isascii() else "xn--" + label.encode("punycode").decode("ascii") for label in labels)
