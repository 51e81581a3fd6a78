"""Passwords of users, against hashes of Argon2 and bcrypt. A check takes tens of milliseconds: not on the event loop.

Sources: RFC 9106 (Argon2), the PHC string format, the modular crypt format of bcrypt ($2a$, $2b$, $2y$).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from egressproxy.identity.credentials import CredentialRefused
from egressproxy.model.caller_identity import CallerIdentity, service_account_name
from egressproxy.model.secret import SecretBytes

#: Above these a check takes seconds, or much of the memory.
MAX_ARGON2_KIB: Final = 256 * 1024
MAX_ARGON2_PASSES: Final = 16
MAX_ARGON2_LANES: Final = 16
MAX_BCRYPT_COST: Final = 14

_ARGON2: Final = re.compile(rb"\$argon2(?:i|d|id)\$v=19\$m=([0-9]{1,8}),t=([0-9]{1,4}),p=([0-9]{1,4})\$[^$]+\$[^$]+")
_BCRYPT: Final = re.compile(rb"\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{53}")
#: `namespace.serviceAccount`: a namespace has no dot.
_WORKLOAD: Final = re.compile(r"([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)\.([a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?)")
#: bcrypt looks at no more, and its library refuses more.
_BCRYPT_BYTES: Final = 72
_WRONG: Final = "the user name or the password is wrong"


def hash_problem(value: bytes) -> str:
    """Why this is no hash that passwords are checked against; "" if it is one. Never repeats it."""
    argon2 = _ARGON2.fullmatch(value)
    if argon2 is not None:
        memory, passes, lanes = map(int, argon2.groups())
        if memory > MAX_ARGON2_KIB or passes > MAX_ARGON2_PASSES or lanes > MAX_ARGON2_LANES:
            return (
                f"each check would take too much: at most m={MAX_ARGON2_KIB}, t={MAX_ARGON2_PASSES}, "
                f"p={MAX_ARGON2_LANES}"
            )
        return ""
    bcrypt = _BCRYPT.fullmatch(value)
    if bcrypt is None:
        return "it is no hash of Argon2 or bcrypt: make one with htpasswd -B, or argon2"
    if not 4 <= int(bcrypt[1]) <= MAX_BCRYPT_COST:
        return f"each check would take too much: a cost of at most {MAX_BCRYPT_COST}"
    return ""


class PasswordVerifier:
    """Verifies user names and passwords. `users` has the hash of each, which `hash_problem` has accepted; one whose
    name is `namespace.serviceAccount` counts as that service account. `of` is what tells them from other users of the
    same names: their Secret.
    """

    __slots__ = ("_decoys", "_of", "_users")

    def __init__(self, users: Mapping[str, SecretBytes], of: str) -> None:
        self._of = of
        self._users = users
        self._decoys = list(users.values())

    def verify(self, user: bytes, password: bytes) -> CallerIdentity:
        """Who this user is. Raises CredentialRefused, for an unknown user with the same words after the same time."""
        name = user.decode("utf-8", "replace")
        found = hashed = self._users.get(name)
        if hashed is None:
            digest = blake2b(user, digest_size=8).digest()
            hashed = self._decoys[int.from_bytes(digest, "big") % len(self._decoys)]
        is_right = _matches(hashed.reveal(), password)
        if found is None or not is_right:
            raise CredentialRefused(_WRONG, "no user of this name" if found is None else f"user {name}")
        workload = _WORKLOAD.fullmatch(name)
        if workload is None:
            return CallerIdentity(name=f"{self._of}#{name}", source="basic")
        namespace, account = workload[1], workload[2]
        return CallerIdentity(namespace, account, name=service_account_name(namespace, account), source="basic")


def _matches(hashed: bytes, password: bytes) -> bool:
    if hashed.startswith(b"$argon2"):
        return _matches_argon2(hashed, password)
    import bcrypt  # here: few listeners have users

    if len(password) > _BCRYPT_BYTES:
        bcrypt.checkpw(password[:_BCRYPT_BYTES], hashed)  # it takes the same time
        return False
    return bcrypt.checkpw(password, hashed)


def _matches_argon2(hashed: bytes, password: bytes) -> bool:
    from argon2.exceptions import Argon2Error
    from argon2.low_level import Type, verify_secret

    kinds = {b"argon2id": Type.ID, b"argon2i": Type.I, b"argon2d": Type.D}
    try:
        return verify_secret(hashed, password, kinds[hashed.split(b"$")[1]])
    except Argon2Error:
        return False
