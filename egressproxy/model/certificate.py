"""Certificates as values: how long one or a revocation list may be used, what is to be said of it; and minted ones. The
process that reads the configuration parses them; those that serve have only these figures.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from egressproxy.model.secret import SecretBytes

if TYPE_CHECKING:
    from cryptography import x509

_DAY_S: Final = 86_400.0
#: A certificate is renewed late when so little is left of it: of ninety days these are eighteen, of a week one and a
#: half.
_LATE_S: Final = 30 * _DAY_S
_LATE_SHARE: Final = 0.2


class CertificateUse(str, Enum):
    """What a certificate or list is for. The values are those of the label `use` in metrics."""

    LISTENER = "listener"  # shown to clients
    CLIENT = "client"  # shown to backends
    CA = "ca"  # others are verified with it
    CRL = "crl"  # a revocation list (RFC 5280 section 5): others are looked for in it


class CertificateState(str, Enum):
    """Whether it can be used at some moment."""

    VALID = "valid"
    LATE = "late"  # it ends soon, for how long it holds
    EXPIRED = "expired"
    NOT_YET_VALID = "not yet valid"


class Validity(NamedTuple):
    """Of one Secret or ConfigMap, in seconds since the epoch. Of a chain: that of its first certificate; of several
    CA certificates `not_after_s` is the earliest end, and `last_s` the latest. Of revocation lists both are the
    earliest time at which an issuer has no list any more whose `nextUpdate` is to come.
    """

    use: CertificateUse
    kind: str
    namespace: str
    name: str
    not_before_s: float
    not_after_s: float
    last_s: float

    def state(self, now_s: float) -> CertificateState:
        """The state at `now_s`, in seconds since the epoch. CA certificates have expired when all of them have."""
        if now_s >= self.last_s:
            return CertificateState.EXPIRED
        if now_s < self.not_before_s:
            return CertificateState.NOT_YET_VALID
        left_s, life_s = self.last_s - now_s, self.last_s - self.not_before_s
        return CertificateState.LATE if left_s < min(_LATE_S, life_s * _LATE_SHARE) else CertificateState.VALID

    def sentence(self, now_s: float) -> str:
        """What is wrong at `now_s` and what to do, as text for people; "" for a valid certificate."""
        name = f"{self.namespace}/{self.name}" if self.namespace else self.name
        whose = f"{_WORDS[self.use]} of {self.kind} {name}"
        match self.state(now_s):
            case CertificateState.EXPIRED if self.use is CertificateUse.CRL:
                return f"the {whose} should have been replaced on {_date(self.last_s)}: {_OUT_OF_DATE}; {_REMEDY}"
            case CertificateState.EXPIRED:
                return f"the {whose} has expired on {_date(self.last_s)}: {_REMEDY}"
            case CertificateState.NOT_YET_VALID:
                return f"the {whose} is not valid before {_date(self.not_before_s)}: wait, or look at the clock"
            case CertificateState.LATE:
                left = _duration(self.last_s - now_s)
                return f"the {whose} expires in {left}, on {_date(self.last_s)}: {_REMEDY}"
        return ""

    def next_change_s(self, now_s: float) -> float:
        """When, after `now_s`, it begins or ends to be valid, in seconds since the epoch; infinity if never."""
        return next((at for at in (self.not_before_s, self.last_s) if at > now_s), float("inf"))


_REMEDY: Final = "renew it in that object"
#: OpenSSL's X509_V_ERR_CRL_HAS_EXPIRED.
_OUT_OF_DATE: Final = "until then every certificate of its issuer is refused"
_WORDS: Final = {
    CertificateUse.LISTENER: "certificate",
    CertificateUse.CLIENT: "client certificate",
    CertificateUse.CA: "CA certificate",
    CertificateUse.CRL: "revocation list",
}


def _duration(seconds: float) -> str:
    """In the unit in which there are two or more."""
    if seconds >= 2 * _DAY_S:
        return f"{seconds / _DAY_S:.1f} days"
    return f"{seconds / 3600:.1f} hours" if seconds >= 7200.0 else f"{seconds / 60:.1f} minutes"


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def why_not_a_ca(certificate: x509.Certificate) -> str:
    """Why clients believe nothing that it has signed; "" where they would (RFC 5280 sections 4.2.1.3 and 4.2.1.9)."""
    from cryptography import x509  # here: the processes that serve have it for interception alone

    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        return "is none of a CA: it has no basicConstraints"
    except ValueError:
        return "has extensions that cannot be read"
    if not constraints.ca:
        return "is none of a CA: its basicConstraints say CA:FALSE"
    try:
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        return ""
    return "" if usage.key_cert_sign else "may not sign others: its keyUsage has no keyCertSign"


@dataclass(frozen=True, slots=True)
class Leaf:
    """`chain_pem`: it, and then what leads to the root of its CA, which is none of it (RFC 8446 section 4.4.2).
    `key_pem` is its private key. `expires_at`: seconds since the epoch.
    """

    chain_pem: str
    key_pem: SecretBytes = field(repr=False)
    expires_at: float
