"""AWS, as it is written in a CredentialInjector: what signs requests, and where its keys are from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from egressproxy.filters.credentials.token_config import MachinePath, TargetPath, TokenEndpoint
from egressproxy.filters.settings import CalledBackendRef, FilterConfig, SecretRef, Within

Word = Annotated[str, Within(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]


@dataclass(frozen=True, slots=True)
class AwsAccessKey(FilterConfig):
    """Keys in Secrets: the key's id, its secret, and for temporary ones the session token."""

    access_key_id_ref: SecretRef
    secret_access_key_ref: SecretRef
    session_token_ref: SecretRef | None = None


@dataclass(frozen=True, slots=True)
class AwsWebIdentity(FilterConfig):
    """AssumeRoleWithWebIdentity of STS, as IRSA has it: the token in `tokenFile` is exchanged for keys of the role."""

    role_arn: Annotated[str, Within(pattern=r"^arn:[A-Za-z0-9-]+:iam::[0-9]{12}:role/[\x21-\x7e]{1,512}$")]
    token_file: MachinePath
    sts: TokenEndpoint
    session_name: Annotated[str, Within(pattern=r"^[A-Za-z0-9_=,.@-]{2,64}$")] = "egressproxy"


@dataclass(frozen=True, slots=True)
class AwsContainer(FilterConfig):
    """The credentials of a task (ECS) or pod (EKS Pod Identity), from an endpoint of the machine.

    `path` is that of AWS_CONTAINER_CREDENTIALS_RELATIVE_URI; `authorizationTokenFile` holds what the agent wants shown.
    """

    backend_ref: CalledBackendRef
    path: TargetPath
    authorization_token_file: Annotated[str, Within(pattern=r"^(/[^\x00]*)?$")] = ""


@dataclass(frozen=True, slots=True)
class AwsInstanceMetadata(FilterConfig):
    """The credentials of an EC2 instance, from its metadata service (IMDSv2); a policy has to allow its address."""

    backend_ref: CalledBackendRef


@dataclass(frozen=True, slots=True)
class Aws(FilterConfig):
    """Signs requests: Signature Version 4, or 4A, whose `region` is a set (`*`, `eu-*`).

    The keys are from one of `accessKey`, `webIdentity`, `container` and `instanceMetadata`. `payload` Auto: S3 gets the
    hash of the body that the client has sent, or none (UNSIGNED-PAYLOAD); other services get a hash of the body, of
    which at most `maxBodyBytes` are collected. Signed and Unsigned do one of these for every service.
    """

    service: Word
    region: Annotated[str, Within(pattern=r"^[A-Za-z0-9_.*,-]{1,256}$")]
    algorithm: Literal["SigV4", "SigV4A"] = "SigV4"
    access_key: AwsAccessKey | None = None
    web_identity: AwsWebIdentity | None = None
    container: AwsContainer | None = None
    instance_metadata: AwsInstanceMetadata | None = None
    payload: Literal["Auto", "Signed", "Unsigned"] = "Auto"
    max_body_bytes: Annotated[int, Within(ge=1, le=1 << 30)] = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        sources = (self.access_key, self.web_identity, self.container, self.instance_metadata)
        if sum(each is not None for each in sources) != 1:
            raise ValueError("write one of `accessKey`, `webIdentity`, `container` and `instanceMetadata`")
        if self.algorithm == "SigV4" and not set(self.region).isdisjoint("*,"):
            raise ValueError("a set of regions needs `algorithm: SigV4A`")

    @property
    def is_s3(self) -> bool:
        """Whether the service has the rules of S3 for paths and bodies."""
        return self.service in ("s3", "s3-outposts", "s3-object-lambda", "s3express")

    @property
    def signs_body(self) -> bool:
        """Whether the signature covers the body, which has to be collected for that."""
        return self.payload == "Signed" or (self.payload == "Auto" and not self.is_s3)
