"""Untranslatable: a request without equivalent in another API; BadAnswer; and the parts of a provider's error."""

from __future__ import annotations

from egressproxy.model.strict_json import Unreadable, loads


class Untranslatable(Exception):
    """A request without equivalent in the other API: 400, in the client's form. `field` is the path in its JSON
    (`messages[2].content[0].file`), or empty for the whole body; `why` is the rest of the sentence.
    """

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}" if field else why)
        self.field = field
        self.why = why


class BadAnswer(Exception):
    """A backend's response that is unreadable, or without equivalent in the client's API: 502 for the client."""


def error_in(body: bytes) -> tuple[str | None, str | None]:
    """The message and the code of a provider's error, or None. All APIs have the same members but Bedrock, which has a
    message alone; Google's servers may put the object into an array.
    """
    try:
        value = loads(body)
        if type(value) is list:
            value = value[0]
        error = value.get("error", value)
        message, code = error["message"], error.get("code")
    except (Unreadable, LookupError, TypeError, AttributeError):
        return None, None
    return (message if type(message) is str else None, code if type(code) is str else None)
