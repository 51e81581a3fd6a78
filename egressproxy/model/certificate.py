"""Certificates as values: validity of certificates and revocation lists, their warnings, and minted certificates. The
loader process parses them; serving processes have only these figures.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from egressproxy.model.encoding import rfc3339
from egressproxy.model.secret import SecretBytes

if TYPE_CHECKING:
    from cryptography import x509

_DAY_S: Final = 86_400.0
#: A certificate with less than this left is renewed late: eighteen of ninety days, one and a half of a week.
_LATE_S: Final = 30 * _DAY_S
_LATE_SHARE: Final = 0.2


class CertificateUse(str, Enum):
    """The use of a certificate or revocation list: the values of the metric label `use`."""

    LISTENER = "listener"  # shown to clients
    CLIENT = "client"  # shown to backends
    CA = "ca"  # verifies peers' certificates
    CRL = "crl"  # a revocation list (RFC 5280 section 5)


class CertificateState(str, Enum):
    """The validity of a certificate at some moment."""

    VALID = "valid"
    LATE = "late"  # expires soon, relative to its lifetime
    EXPIRED = "expired"
    NOT_YET_VALID = "not yet valid"


class Validity(NamedTuple):
    """The validity of one Secret or ConfigMap, in seconds since the epoch. For a chain, the first certificate decides;
    for several CA certificates `not_after_s` is the earliest end, and `last_s` the latest. For revocation lists both
    are the earliest time at which the `nextUpdate` of all lists of an issuer has passed.
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
                return f"the {whose} should have been replaced on {rfc3339(self.last_s)}: {_OUT_OF_DATE}; {_REMEDY}"
            case CertificateState.EXPIRED:
                return f"the {whose} has expired on {rfc3339(self.last_s)}: {_REMEDY}"
            case CertificateState.NOT_YET_VALID:
                return f"the {whose} is not valid before {rfc3339(self.not_before_s)}: wait, or look at the clock"
            case CertificateState.LATE:
                left = _duration(self.last_s - now_s)
                return f"the {whose} expires in {left}, on {rfc3339(self.last_s)}: {_REMEDY}"
        return ""

    def next_change_s(self, now_s: float) -> float:
        """The next start or end of validity after `now_s`, in seconds since the epoch; infinity if there is none."""
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
    """The duration in the largest unit of which there are two or more."""
    if seconds >= 2 * _DAY_S:
        return f"{seconds / _DAY_S:.1f} days"
    return f"{seconds / 3600:.1f} hours" if seconds >= 7200.0 else f"{seconds / 60:.1f} minutes"


def why_not_a_ca(certificate: x509.Certificate) -> str:
    """Why clients reject what this certificate signed; "" if they accept it (RFC 5280 sections 4.2.1.3, 4.2.1.9)."""
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
    """A leaf certificate. `chain_pem`: the leaf, then the intermediates without the root (RFC 8446 section 4.4.2).
    `key_pem` is the private key. `expires_at`: seconds since the epoch.
    """

    chain_pem: str
    key_pem: SecretBytes = field(repr=False)
    expires_at: float
