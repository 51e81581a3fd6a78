"""Temporary keys of AWS: from STS with a token of the cluster, from the agent of a container, from the metadata of EC2.

Source: AWS STS API (AssumeRoleWithWebIdentity), "Container credential provider", "Instance metadata service" version 2.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from egressproxy.filters.base import FilterContext
from egressproxy.filters.calls import CallAnswer, FilterCall
from egressproxy.filters.credentials.aws_signature import AwsKeys
from egressproxy.filters.credentials.config import Aws, AwsContainer, AwsInstanceMetadata, AwsWebIdentity
from egressproxy.filters.credentials.local_sources import read_file
from egressproxy.filters.credentials.oauth2 import Fetch, secret_of, token_file
from egressproxy.filters.credentials.refresher import Fetched, FetchError
from egressproxy.filters.credentials.token_endpoint import answer_of, ask_json, checked_call
from egressproxy.model.fields import VALUE
from egressproxy.model.secret import SecretBytes

#: STS answers in XML: the elements of Credentials, each once.
_ELEMENT: Final = r"<{0}>([^<>&]{{1,8192}})</{0}>"
_CODE: Final = re.compile(r"<Code>([A-Za-z]{1,64})</Code>")
_ROLE: Final = re.compile(r"[A-Za-z0-9+=,@_-][A-Za-z0-9+=,.@_-]{0,127}")


def static_keys(context: FilterContext, config: Aws) -> AwsKeys | None:
    """The keys of `accessKey`; None where a Secret is missing."""
    assert config.access_key is not None
    refs = config.access_key
    key_id, secret = secret_of(context, refs.access_key_id_ref), secret_of(context, refs.secret_access_key_ref)
    token = secret_of(context, refs.session_token_ref)
    if key_id is None or secret is None or (token is None and refs.session_token_ref is not None):
        return None
    return _keys(key_id.reveal().decode("latin-1"), secret.reveal(), token.reveal() if token is not None else b"")


def from_aws(context: FilterContext, config: Aws) -> Fetch | None:
    """What fetches the keys of this config, as AwsKeys; None for keys in Secrets."""
    if config.web_identity is not None:
        return _from_sts(context, config.web_identity)
    if config.container is not None:
        return _from_container(context, config.container)
    if config.instance_metadata is not None:
        return _from_instance(context, config.instance_metadata)
    return None


def _keys(key_id: str, secret: bytes, token: bytes) -> AwsKeys:
    """Raises ValueError for keys that no field can have."""
    if not re.fullmatch(r"[A-Za-z0-9_]{1,128}", key_id) or not secret or not VALUE.fullmatch(token):
        raise ValueError("these are no keys of AWS")
    return AwsKeys(key_id, SecretBytes(secret), SecretBytes(token) if token else None)


def _from_sts(context: FilterContext, config: AwsWebIdentity) -> Fetch:
    call = context.calls.get(config.sts.backend_ref.label)

    async def fetch() -> Fetched:
        asked = checked_call(call, allow_plaintext=config.sts.allow_plaintext)
        form = [
            ("Action", "AssumeRoleWithWebIdentity"),
            ("Version", "2011-06-15"),
            ("RoleArn", config.role_arn),
            ("RoleSessionName", config.session_name),
            ("WebIdentityToken", token_file(config.token_file)),
        ]
        fields = [(b"accept", b"application/xml"), (b"content-type", b"application/x-www-form-urlencoded")]
        answer = await answer_of(asked, b"POST", config.sts.path, fields, urlencode(form).encode())
        text = answer.body.decode("utf-8", "replace")
        if answer.status != 200:
            code = _CODE.search(text)
            raise FetchError(f"backend {asked.backend} answered with {answer.status}{f' ({code[1]})' if code else ''}")
        found = {
            name: each[0]
            for name in ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
            if len(each := re.findall(_ELEMENT.format(name), text)) == 1
        }
        return _fetched({**found, "Token": found.get("SessionToken")})

    return fetch


def _from_container(context: FilterContext, config: AwsContainer) -> Fetch:
    call = context.calls.get(config.backend_ref.label)

    async def fetch() -> Fetched:
        asked = checked_call(call, allow_plaintext=True)  # an agent on the machine
        fields = []
        if config.authorization_token_file:
            token = read_file(Path(config.authorization_token_file)).strip()
            if not VALUE.fullmatch(token):
                raise FetchError(f"{config.authorization_token_file} does not hold a token", is_final=True)
            fields.append((b"authorization", token))
        return _fetched(await ask_json(asked, config.path, method=b"GET", fields=fields))

    return fetch


def _from_instance(context: FilterContext, config: AwsInstanceMetadata) -> Fetch:
    call = context.calls.get(config.backend_ref.label)
    role_path = "/latest/meta-data/iam/security-credentials/"

    async def fetch() -> Fetched:
        asked = checked_call(call, allow_plaintext=True)
        lifetime = [(b"x-aws-ec2-metadata-token-ttl-seconds", b"300")]
        session = _ok(asked, await answer_of(asked, b"PUT", "/latest/api/token", lifetime)).strip()
        if not session or not VALUE.fullmatch(session):
            raise FetchError("the metadata service gave no session token")
        shown = [(b"x-aws-ec2-metadata-token", session)]
        role = _ok(asked, await answer_of(asked, b"GET", role_path, shown)).decode("latin-1").strip()
        if not _ROLE.fullmatch(role):
            raise FetchError("the metadata service names no role: the instance has none")
        return _fetched(await ask_json(asked, role_path + role, method=b"GET", fields=shown))

    return fetch


def _ok(call: FilterCall, answer: CallAnswer) -> bytes:
    if answer.status != 200:
        raise FetchError(f"backend {call.backend} answered with {answer.status}")
    return answer.body


def _fetched(found: Mapping[str, Any]) -> Fetched:
    """The keys of an answer, under the names that containers and instances have for them. Raises FetchError."""
    try:
        keys = _keys(found["AccessKeyId"], found["SecretAccessKey"].encode("ascii"), found["Token"].encode("ascii"))
        left = datetime.fromisoformat(found["Expiration"]).timestamp() - time.time()
    except (KeyError, TypeError, AttributeError, ValueError):
        raise FetchError("the answer has no usable keys with Token and Expiration") from None
    if left <= 0:
        raise FetchError("the keys of the answer have expired")
    return Fetched(keys, left)
