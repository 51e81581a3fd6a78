"""SecretKeys: keys, tokens and private keys by the forms that their issuers publish for secret scanning.

Sources: GitHub's, GitLab's, Slack's, Stripe's, AWS's and Google's pages on the formats of their tokens; RFC 7519 (JWT);
RFC 7468 and OpenSSH (private keys). A key without a published form is not found: give a pattern of your own for it.
"""

from __future__ import annotations

import re
from typing import Final

from egressproxy.ai.content.spans import TAIL, Detector, Span

#: Characters. The longest token with a form here; a JWT; a private key block (RSA of 16384 bits has 12.5 KiB).
_MAX_TOKEN: Final = TAIL - 2
_MAX_JWT: Final = 8192
_MAX_BLOCK: Final = 16384

_TOKENS: Final = (
    r"sk-ant-[0-9A-Za-z_-]{24,}",  # Anthropic
    r"sk-(?:proj-|svcacct-|admin-|or-v1-)?[0-9A-Za-z_-]{20,}",  # OpenAI, OpenRouter, and compatible providers
    r"(?:sk|rk|pk)_(?:live|test)_[0-9A-Za-z]{10,}",  # Stripe
    r"whsec_[0-9A-Za-z+/=]{20,}",  # Stripe, Svix
    r"(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}(?![0-9A-Za-z])",  # AWS: identifiers of access keys
    r"AIza[0-9A-Za-z_-]{35}",  # Google
    r"ya29\.[0-9A-Za-z_-]{20,}",  # Google OAuth 2.0
    r"GOCSPX-[0-9A-Za-z_-]{28}",  # Google: secrets of OAuth clients
    r"gh[pousr]_[0-9A-Za-z]{36,}",  # GitHub
    r"github_pat_[0-9A-Za-z_]{22,}",
    r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|oas)-[0-9A-Za-z_-]{20,}",  # GitLab
    r"xox[abeoprs](?:\.xox[bp])?-[0-9A-Za-z-]{10,}",  # Slack
    r"xapp-[0-9]-[0-9A-Za-z-]{10,}",
    r"hf_[0-9A-Za-z]{30,}",  # Hugging Face
    r"npm_[0-9A-Za-z]{36}",  # npm
    r"pypi-AgEIcHlwaS5vcmc[0-9A-Za-z_-]{50,}",  # PyPI
    r"SG\.[0-9A-Za-z_-]{22}\.[0-9A-Za-z_-]{43}",  # SendGrid
    r"dop_v1_[0-9a-f]{64}",  # DigitalOcean
    r"shp(?:at|ca|pa|ss)_[0-9A-Fa-f]{32}",  # Shopify
    r"AGE-SECRET-KEY-1[0-9A-Z]{58}",  # age
    r"(?:gsk_|xai-|pplx-|nvapi-|r8_|lsv2_pt_|tvly-)[0-9A-Za-z_-]{30,}",  # Groq, xAI, Perplexity, NVIDIA, Replicate …
)
#: The prefixes without a hyphen or underscore after the first word. The others are searched by that character.
_WITHOUT_SIGN: Final = ("AKIA", "ASIA", "ABIA", "ACCA", "AIza", "ya29.", "SG.")
_WORDS: Final = (
    "sk", "rk", "pk", "whsec", "GOCSPX", "ghp", "gho", "ghu", "ghs", "ghr", "github", "glpat", "gldt", "glrt",
    "glcbt", "glptt", "glft", "glsoat", "glagent", "gloas", "xoxa", "xoxb", "xoxe", "xoxo", "xoxp", "xoxr", "xoxs",
    "xapp", "hf", "npm", "pypi", "dop", "shpat", "shpca", "shppa", "shpss", "AGE", "gsk", "xai", "pplx", "nvapi",
    "r8", "lsv2", "tvly",
)  # fmt: skip
_SIGN = re.compile(
    f"[-_](?<=[{''.join(sorted({word[-1] for word in _WORDS}))}].)(?:"
    + "|".join(
        f"(?<=(?:{'|'.join(word for word in _WORDS if len(word) == length)}).)"
        for length in sorted(set(map(len, _WORDS)))
    )
    + ")"
)
_WORD_BACKWARDS = re.compile(r"[0-9A-Za-z]{1,8}(?![0-9A-Za-z_])")
_TOKEN = re.compile("|".join(_TOKENS))
_JWT = re.compile(r"eyJ[0-9A-Za-z_-]{8,}\.(?:eyJ)?[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]*(?:\.[0-9A-Za-z_-]+){0,2}")
_BEGIN = re.compile(r"-----BEGIN (?:[0-9A-Z ]{1,40} )?PRIVATE KEY(?: BLOCK)?-----")
_END = re.compile(r"-----END [0-9A-Z ]{0,60}-----")
#: The characters of a block's lines, with backslashes inside of a JSON string.
_BLOCK = re.compile(r"[0-9A-Za-z+/=\\\s:,.-]*")

_OPEN_TOKEN = re.compile(rf"[0-9A-Za-z_.+/=-]{{1,{TAIL}}}")
_OPEN_JWT = re.compile(rf"[0-9A-Za-z_.-]{{1,{_MAX_JWT}}}")
#: The beginning of a block's first line, backwards.
_OPEN_BEGIN = re.compile(r"[0-9A-Z -]{0,64}-----(?!-)")


class SecretKeys(Detector):
    """A detector of API_KEY, JWT and PRIVATE_KEY, as configured."""

    __slots__ = ("_blocks", "_jwt", "_tokens")

    def __init__(self, entities: frozenset[str]) -> None:
        self._tokens = "API_KEY" in entities
        self._jwt = "JWT" in entities
        self._blocks = "PRIVATE_KEY" in entities

    def find(self, text: str, start: int, found: list[Span]) -> None:
        if self._tokens:
            for prefix in _WITHOUT_SIGN:
                at = text.find(prefix, start)
                while at >= 0:
                    if at == 0 or not (text[at - 1].isalnum() or text[at - 1] == "_"):
                        _append_token(text, at, found)
                    at = text.find(prefix, at + 1)
            sign = _SIGN.search(text, start)
            while sign is not None:
                end = sign.start()
                word = _WORD_BACKWARDS.match(text[max(0, end - 9) : end][::-1])
                if word is not None and end - word.end() >= start:
                    _append_token(text, end - word.end(), found)
                sign = _SIGN.search(text, end + 1)
        if self._jwt:
            at = text.find("eyJ", start)
            while at >= 0:
                match = None if _is_inside(text, at) else _JWT.match(text, at, at + _MAX_JWT)
                if match is not None:
                    found.append(Span(at, match.end(), "JWT", at))
                at = text.find("eyJ", at + 3)
        if self._blocks:
            at = text.find("-----BEGIN ", start)
            while at >= 0:
                end = _block_end(text, at)
                if end:
                    found.append(Span(at, end, "PRIVATE_KEY", at))
                at = text.find("-----BEGIN ", at + 10)

    def open_end(self, text: str, tail: str) -> int:
        length = 0
        if self._tokens or self._jwt:
            match = _OPEN_TOKEN.match(tail)
            if match is not None:
                length = match.end()
                if length == TAIL and self._jwt:
                    run = _OPEN_JWT.match(text[: -_MAX_JWT - 1 : -1])
                    length = max(length, 0 if run is None else run.end())
        if self._blocks:
            if "-" in tail[:80]:
                match = _OPEN_BEGIN.match(tail)
                if match is not None:
                    length = max(length, match.end())
            at = text.find("-----BEGIN ", max(0, len(text) - _MAX_BLOCK))
            while at >= 0:
                if _BEGIN.match(text, at) is not None and _is_unfinished(text, at):
                    return max(length, len(text) - at)
                at = text.find("-----BEGIN ", at + 10)
        return length


def _is_inside(text: str, at: int) -> bool:
    """Whether this position is inside of a word, where no key begins."""
    return at > 0 and (text[at - 1].isalnum() or text[at - 1] in "_-")


def _append_token(text: str, at: int, found: list[Span]) -> None:
    match = _TOKEN.match(text, at, at + _MAX_TOKEN)
    if match is not None:
        found.append(Span(at, match.end(), "API_KEY", at))


def _block_end(text: str, at: int) -> int:
    begin = _BEGIN.match(text, at)
    if begin is None:
        return 0
    limit = _block_limit(text, begin.end(), at)
    match = _END.search(text, begin.end(), limit)
    return limit if match is None else match.end()


def _is_unfinished(text: str, at: int) -> bool:
    """Whether a block that begins here may continue after the end of the text."""
    return _block_limit(text, at + 10, at) == len(text) and _END.search(text, at) is None


def _block_limit(text: str, start: int, at: int) -> int:
    """The end of the characters of a block; the start of another block ends it."""
    following = text.find("-----BEGIN ", start, at + _MAX_BLOCK)
    block = _BLOCK.match(text, start, at + _MAX_BLOCK if following < 0 else following)
    return start if block is None else block.end()
