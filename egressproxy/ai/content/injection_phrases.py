"""InjectionPhrases: common phrases of prompt injection. The wording is our own, after public reports.

Text is normalised first: look-alikes folded, lower case, one blank for other characters than letters and digits. So
case, line breaks and punctuation make no difference; other words do.
"""

from __future__ import annotations

import re
from typing import Any, Final

from egressproxy.ai.content.folding import Folder
from egressproxy.ai.content.own_patterns import searched_in

_FILLERS: Final = r"(?:[a-z]+ ){0,5}"
_ORDERS: Final = (
    "(?:instructions?|prompts?|rules?|guidelines?|directions?|directives?|commands?|constraints?|restrictions?"
    "|policy|policies)"
)
_EARLIER: Final = (
    "(?:all|any|every|previous|prior|earlier|above|preceding|former|initial|original|system|existing|safety|your"
    "|those|these)"
)
_SECRETS: Final = (
    "(?:api keys?|passwords?|credentials?|secrets?|access tokens?|environment variables|conversation|chat history)"
)
_MODES: Final = "(?:developer|debug|god|admin|sudo|root|jailbreak|dan|unrestricted)"

#: Name -> RE2 expressions for normalised text, one of which has to match. The names are in metrics and messages.
PHRASES: Final = {
    "ignore-instructions": (
        r"\b(?:ignore|disregard|forget|override|bypass|do not follow|don t follow|stop following|pay no attention to) "
        rf"(?:[a-z]+ ){{0,3}}{_EARLIER} (?:[a-z]+ ){{0,2}}{_ORDERS}\b",
    ),
    "reveal-prompt": (
        rf"\b(?:reveal|show|print|repeat|output|display|tell me|give me|leak|dump|what (?:is|are)) {_FILLERS}"
        r"(?:system|hidden|initial|original|secret|developer) (?:prompts?|instructions?|messages?|rules)\b",
    ),
    "new-instructions": (r"\b(?:new|updated|real|actual|secret) system (?:instructions?|prompts?|messages?|rules?)\b",),
    "unrestricted-persona": (
        r"\byou (?:are|re) now (?:[a-z]+ ){0,6}(?:unrestricted|unfiltered|uncensored|jailbroken|dan)\b",
        r"\byou (?:are|re) no longer (?:[a-z]+ ){0,4}(?:bound|restricted|limited|filtered)\b",
        r"\b(?:pretend|act|behave|respond|answer) (?:[a-z]+ ){0,8}(?:no|without|free (?:of|from)) (?:any |all )?"
        r"(?:restrictions?|rules?|limits?|guidelines?|filters?|safety|censorship)\b",
    ),
    "mode-switch": (
        rf"\b{_MODES} mode (?:is )?(?:now )?(?:on|enabled|active|activated|unlocked)\b",
        rf"\b(?:enter|enable|activate|switch to|turn on) {_MODES} mode\b",
        r"\bdo anything now\b",
    ),
    "end-of-prompt": (
        r"\b(?:end|begin|beginning|start) of (?:the )?(?:system|developer) (?:prompt|message|instructions)\b",
    ),
    "hide-from-user": (
        r"\b(?:do not|don t|never) (?:tell|inform|mention|reveal|let) (?:[a-z]+ ){0,3}(?:user|human)s? "
        r"(?:about|of|that|know)\b",
    ),
    "send-secrets": (rf"\b(?:send|forward|post|upload|exfiltrate|email|leak) {_FILLERS}{_SECRETS} {_FILLERS}to\b",),
    "other-languages": (
        r"\b(?:ignoriere|ignorier|vergiss|missachte) (?:\S+ ){0,5}"
        r"(?:anweisungen|regeln|vorgaben|befehle|instruktionen)\b",
        r"\b(?:ignore|ignorez|oublie|oubliez) (?:\S+ ){0,5}(?:instructions|consignes|règles|directives) "
        r"(?:précédentes|antérieures|ci dessus)",
        r"\b(?:ignora|ignore|olvida|omite) (?:\S+ ){0,5}(?:instrucciones|reglas|indicaciones)\b",
        r"\b(?:ignora|dimentica) (?:\S+ ){0,5}(?:istruzioni|regole)\b",
    ),
}
#: Role markers in chat templates of open models, which never occur in a user's text by accident.
_MARKS = re.compile(r"<\|(?:im_start|im_end|system|assistant|endoftext|start_header_id|eot_id)\|>|\[/?INST\]|<</?SYS>>")
_NOT_WORDS = re.compile(r"[\W_]+")
#: The normalisation of ASCII, at a tenth of the cost.
_ORDERED: Final = bytes(code if chr(code).isalnum() else 32 for code in range(128)).lower() + bytes(128)


class InjectionPhrases:
    """A matcher of all phrases."""

    __slots__ = ("_all", "_each", "_folder")

    def __init__(self) -> None:
        import re2  # type: ignore[import-untyped]

        options = re2.Options()
        options.never_capture = True
        self._each: dict[str, Any] = {name: re2.compile("|".join(texts), options) for name, texts in PHRASES.items()}
        self._all = re2.compile("|".join(f"(?:{'|'.join(texts)})" for texts in PHRASES.values()), options)
        self._folder = Folder()

    def found(self, text: str) -> str:
        """The name of a phrase in the text, "" for none."""
        folded = self._folder.fold(text)[0]
        if _MARKS.search(folded) is not None:
            return "template-marks"
        ordered = _in_order(folded)
        if not searched_in(self._all, ordered):
            return ""
        return next((name for name, expression in self._each.items() if searched_in(expression, ordered)), "")

    def may_have(self, folded: str) -> bool:
        """Whether one of the texts joined in `folded` may have a phrase; false is certain."""
        return _MARKS.search(folded) is not None or searched_in(self._all, _in_order(folded))


def _in_order(folded: str) -> str:
    if not folded.isascii():
        return _NOT_WORDS.sub(" ", folded).lower()
    text = folded.encode().translate(_ORDERED)
    while b"  " in text:
        text = text.replace(b"  ", b" ")
    return text.decode()
