"""Names: the domain that a name belongs to, labels that look random, and names that look like other ones. Pure.

Domains are estimated without a list (`domain_of`), since they only group names here. What opens `*.suffix` asks the
Public Suffix List (`PublicSuffixes`), and opens nothing for a name whose suffix the list does not know.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

#: Where distributions keep the list (Debian: the package `publicsuffix`).
PUBLIC_SUFFIX_FILE: Final = Path("/usr/share/publicsuffix/public_suffix_list.dat")
#: The list has two parts; without the second one, `*.github.io` would look like the domain of one owner.
_PRIVATE_PART: Final = "===BEGIN PRIVATE DOMAINS==="
#: Labels below which countries register names.
_SECOND_LEVEL: Final = frozenset({"ac", "co", "com", "edu", "go", "gob", "gov", "ne", "net", "nom", "or", "org"})

#: Labels of fewer characters carry too little data to matter.
RANDOM_LENGTH: Final = 16
#: More characters than this below the domain carry data, whatever they look like.
LONG_NAME: Final = 60
#: The 180 most usual pairs of letters in English. Names made of words have 60 to 90 % of their neighbours in this set,
#: random letters a quarter, digits none.
_USUAL_SHARE: Final = 0.35
_USUAL: Final = frozenset(re.findall(
    "..",
    "thheineranreonatenndtiesorteofedisitalarsttontngsehaasouiolevecomedehiriroicneearacelichllbemasiomurcael"
    "talansdifohopeecprnoctusacotiltrlyncetutsssorsunlowageiewheewiemadolrtpowenaulnitsmoowpaimmiaishirsuidos"
    "iviaamficivipligtuevldrympfeblabghtyopwosaayexkefrooavagifapgrodbosprddoucbueiovbyrmepttocfaefcurnscgida"
    "yocrcldugaquueffbaeylsvaumppuauplugohtruugdsltpi",
))  # fmt: skip
#: Characters that pass for others: read as the letter that they look like (Unicode TR 39, the usual ones).
_LOOKS: Final = str.maketrans(
    "0135\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u04bb\u0501\u051b\u051d\u03bf\u03b1\u03bd\u0131"
    "\u0261\u043a\u043c\u0442\u0432\u043d",
    "olesaeopcyxijshdqwoavigkmtbh",
)
#: Endings with a slip, and the usual ending that they stand for.
_ENDINGS: Final = {"co": "com", "cm": "com", "om": "com", "ne": "net", "og": "org"}
#: Shorter owners' labels have neighbours by chance (`ibm`, `ibn`).
_LEAST_OWNER: Final = 4
_DIGITS: Final = re.compile("[0-9]")


def domain_of(host: str) -> str:
    """The domain that one owner has registered, estimated: the last two labels, three below `co.uk` and the like."""
    labels = host.rsplit(".", 3)
    if len(labels) > 2 and len(labels[-1]) == 2 and labels[-2] in _SECOND_LEVEL:
        return ".".join(labels[-3:])
    return ".".join(labels[-2:])


def patterns_of(host: str) -> list[str]:
    """The hostnames of policies and routes that match this name."""
    return [host, *(f"*.{tail}" for tail in _tails(host)[1:])]


def carries_data(host: str) -> bool:
    """Whether a label looks random, or all of them, or the name is long: it may carry data to the owner's server."""
    below = host.removesuffix(domain_of(host))
    return len(below) > LONG_NAME or any(map(is_random, (*host.split(".")[:-1], below.replace(".", "-"))))


def is_random(label: str) -> bool:
    """Whether a label of 16 or more characters looks unlike words."""
    parts = [part for part in re.split("[-_]", label) if part]
    pairs = [part[at : at + 2] for part in parts for at in range(len(part) - 1)]
    return len(label) >= RANDOM_LENGTH and sum(pair in _USUAL for pair in pairs) < len(pairs) * _USUAL_SHARE


class Lookalikes:
    """Finds names that differ in one character from a domain in this collection, or carry it in another domain."""

    def __init__(self, domains: Iterable[str]) -> None:
        self._domains = {each: _DIGITS.sub("", each) for each in domains}
        self._near: defaultdict[str, set[str]] = defaultdict(set)
        for domain in self._domains:
            for key in _appearances(domain):
                self._near[key].add(domain)

    def of(self, host: str) -> list[str]:
        """The domains that this name could be taken for, in order. Other digits make a series of names."""
        own = domain_of(host)
        letters = _DIGITS.sub("", own)
        near = {domain for key in _appearances(own) for domain in self._near.get(key, ())}
        found = {domain for domain in near if self._domains[domain] != letters}
        labels = host.split(".")
        inside = {".".join(labels[at : at + size]) for size in (2, 3) for at in range(len(labels) - size)}
        return sorted((found | self._domains.keys() & inside) - {own})


def _appearances(domain: str) -> Iterator[str]:
    """The domain as it looks, and without one of its characters: what two names share that are a slip apart."""
    owner, _, suffix = domain.partition(".")
    if owner.startswith("xn--"):
        with suppress(UnicodeError):
            owner = owner[4:].encode().decode("punycode")
    owner = owner.translate(_LOOKS).replace("rn", "m").replace("vv", "w")
    suffix = _ENDINGS.get(suffix, suffix)
    yield f"{owner}.{suffix}"
    if len(owner) >= _LEAST_OWNER:
        yield from (f"{owner[:at]}{owner[at + 1 :]}.{suffix}" for at in range(len(owner)))


class PublicSuffixes:
    """The Public Suffix List (https://publicsuffix.org/list/): below which names anybody may register one."""

    def __init__(self, text: str) -> None:
        """Raises ValueError for a text without both parts of the list."""
        if _PRIVATE_PART not in text:
            raise ValueError(f'the line "{_PRIVATE_PART}" is missing: it is not the whole Public Suffix List')
        lines = (line.split(None, 1)[0] for line in text.splitlines() if line.strip() and not line.startswith("//"))
        self._rules = frozenset(map(_ascii, lines))
        #: Below these a suffix begins: `amazonaws.com` has `s3.amazonaws.com` below it, `sch.uk` all of `*.sch.uk`.
        self._above = frozenset(above for rule in self._rules for above in _tails(rule)[1:])

    def is_owned(self, domain: str) -> bool:
        """Whether one owner has all names below this domain: it lies below a suffix of the list, and above none. False
        where the list does not know the last label.
        """
        if domain in self._above:
            return False
        for tail in _tails(domain):  # the longest rule holds, an exception before all others
            if f"!{tail}" in self._rules:
                return True
            if tail in self._rules or f"*.{tail.partition('.')[2]}" in self._rules:
                return tail != domain
        return False


def _tails(domain: str) -> list[str]:
    labels = domain.split(".")
    return [".".join(labels[at:]) for at in range(len(labels))]


def _ascii(rule: str) -> str:
    labels = rule.split(".")
    return ".".join(each if each.isascii() else f"xn--{each.encode('punycode').decode()}" for each in labels)
