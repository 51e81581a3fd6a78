"""ProviderEndpoint: the settings of one backend of a rule for requests to AI providers. The core does not read them."""

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
