"""ProviderEndpoint: what one backend of a rule says of requests to AI providers. Only their product reads it."""

from __future__ import annotations

from abc import ABC, abstractmethod


class ProviderEndpoint(ABC):
    """For explanations, the part that everybody may ask."""

    __slots__ = ()

    @property
    @abstractmethod
    def values(self) -> dict[str, object]:
        """What the backend says, as plain values."""

    @abstractmethod
    def sentence(self, path: bytes) -> str:
        """What becomes of a request for this path here, for people; b"": of one that is no POST."""
