"""The config of a CredentialInjector, as it is written in a manifest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from egressproxy.filters.credentials.caller_config import CallerCredential, TokenExchange
from egressproxy.filters.credentials.signature_config import Hmac, HttpSignature
from egressproxy.filters.credentials.token_config import (
    Gcp,
    GithubApp,
    Jwt,
    MachinePath,
    OAuth2,
    TargetPath,
    TokenEndpoint,
    Vault,
)
from egressproxy.filters.header_policy import is_protected
from egressproxy.filters.settings import (
    CalledBackendRef,
    Checked,
    FieldName,
    FieldValue,
    FilterConfig,
    Hostname,
    SecretRef,
    Within,
)
from egressproxy.ir.policy import MAX_BUFFERED_BYTES, FieldFault, settings_in, spelling

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
    max_body_bytes: Annotated[int, Within(ge=1, le=1 << 30)] = MAX_BUFFERED_BYTES

    def __post_init__(self) -> None:
        sources = (self.access_key, self.web_identity, self.container, self.instance_metadata)
        if sum(each is not None for each in sources) != 1:
            raise ValueError("write one of `accessKey`, `webIdentity`, `container` and `instanceMetadata`")
        if self.algorithm == "SigV4" and not set(self.region).isdisjoint("*,"):
            raise ValueError("a set of regions needs `algorithm: SigV4A`")

    @property
    def is_s3(self) -> bool:
        return self.service in ("s3", "s3-outposts", "s3-object-lambda", "s3express")

    @property
    def signs_body(self) -> bool:
        """Whether the signature covers the body, which has to be collected for that."""
        return self.payload == "Signed" or (self.payload == "Auto" and not self.is_s3)


def _template(text: str) -> str:
    if text.count("{}") != 1:
        # The text is not shown: somebody may have written the credential itself.
        raise ValueError("the template has to contain {} exactly once, where the secret goes")
    return text


def _user(text: str) -> str:
    if ":" in text or any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise ValueError("a user name has no colon and no control characters (RFC 7617 section 2)")
    return text


@dataclass(frozen=True, slots=True)
class Basic(FilterConfig):
    """`Authorization: Basic`, with the credential as the password (RFC 7617).

    `username` is the user, or `usernameRef` names the Secret that has it; with neither the user is empty.
    """

    username: Annotated[str, Checked(_user)] = ""
    username_ref: SecretRef | None = None

    def __post_init__(self) -> None:
        if self.username and self.username_ref is not None:
            raise ValueError("`username` and `usernameRef` exclude each other: keep one")


@dataclass(frozen=True, slots=True)
class Command(FilterConfig):
    """A program that prints the credential on its standard output.

    `argv` are the program (an absolute path) and its arguments; no shell reads them. It runs again every `ttlSeconds`,
    may take `timeoutSeconds`, and print `maxBytes`. It sees PATH, HOME, LANG and the variables of `environment`.
    """

    argv: Annotated[tuple[Annotated[str, Within(min_length=1)], ...], Within(min_length=1, max_length=64)]
    ttl_seconds: Annotated[int, Within(ge=1, le=86400)] = 300
    timeout_seconds: Annotated[int, Within(ge=1, le=60)] = 10
    max_bytes: Annotated[int, Within(ge=1, le=1048576)] = 65536
    environment: tuple[Annotated[str, Within(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], ...] = ()

    def __post_init__(self) -> None:
        program = self.argv[0]
        if not program.startswith("/") or "\0" in program:
            raise ValueError(f"{program!r} is not an absolute path: write the whole path of the program")


@dataclass(frozen=True, slots=True)
class Binding(FilterConfig):
    """What the backend has to be, besides the one that the filter is placed on. Empty: anything.

    `hosts` are names that its certificate was verified for; `ports` are those that may be dialled; `pathPrefix` is what
    the path of the request begins with, by whole segments, as the backend gets it.
    """

    hosts: tuple[Hostname, ...] = ()
    ports: tuple[Annotated[int, Within(ge=1, le=65535)], ...] = ()
    path_prefix: Annotated[str, Within(pattern=r"^(/[A-Za-z0-9._~!$&'()*+,;=:@/-]*)?$")] = ""


#: Where the value comes from: exactly one of these fields.
SOURCES = (
    "secret_ref",
    "env",
    "file",
    "command",
    "oauth2",
    "token_exchange",
    "jwt",
    "github_app",
    "vault",
    "gcp",
    "aws",
    "hmac",
    "http_signature",
)
#: Of these, what signs requests and has no value.
SIGNATURES = ("aws", "hmac", "http_signature")
#: The fields that say how a value goes into the request, and back.
_OF_VALUES = ("header", "query", "basic", "template", "placeholder", "scrub_responses")
#: Schemes that authenticate a connection, which other callers use, too (RFC 4559 section 6; MS-NTHT).
_OF_CONNECTIONS = ("negotiate", "ntlm")


@dataclass(frozen=True, slots=True)
class CredentialInjectorConfig(FilterConfig):
    """One source (`secretRef`, `env`, `file`, `command`, `oauth2`, `tokenExchange`, `jwt`, `githubApp`, `vault`,
    `gcp`), and one place (`header`, `query`, `basic`).

    `callers` are Secrets for some callers: the first entry that matches counts. All other
    callers get the credential of the source, or are refused without a source.

    `env` is a variable of the gateway's environment. `file` starts at the folder of the manifest and stays inside.
    `header` or `query` names where the value goes; `{}` in `template` is replaced by it. Without a place it goes into
    `Authorization`, with the template `Bearer {}` (RFC 6750 section 2.1) unless another is given. With `header` or
    `query` the default template is `{}`. `basic` sends it as a password. `bind` says what the backend has to be. With
    `aws`, `hmac` or `httpSignature` instead of a source and a place, requests are signed.

    With `placeholder` the value goes only into requests that have this text in that place. `require: placeholder`
    refuses all others. `placeholderBodyBytes`: so many bytes of each body are searched for placeholders; 0: none.
    `scrubResponses` overwrites the value in responses: `scrubAs` says with what.
    """

    secret_ref: SecretRef | None = None
    env: Annotated[str, Within(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")] = ""
    file: str = ""
    command: Command | None = None
    oauth2: OAuth2 | None = None
    token_exchange: TokenExchange | None = None
    jwt: Jwt | None = None
    github_app: GithubApp | None = None
    vault: Vault | None = None
    gcp: Gcp | None = None
    aws: Aws | None = None
    hmac: Hmac | None = None
    http_signature: HttpSignature | None = None
    callers: Annotated[tuple[CallerCredential, ...], Within(max_length=256)] = ()
    header: FieldName | Literal[""] = ""
    query: Annotated[str, Within(pattern=r"^[A-Za-z0-9._~-]*$")] = ""
    basic: Basic | None = None
    template: Annotated[FieldValue, Checked(_template)] = ""
    bind: Binding = field(default_factory=Binding)
    allow_plaintext: bool = False
    keep_client_credentials: bool = False
    scrub_responses: bool = False
    scrub_as: Literal["Asterisks", "Placeholder"] = "Asterisks"
    placeholder: Annotated[str, Within(max_length=256, pattern=r"^([A-Za-z0-9._~-]{16,})?$")] = ""
    require: Literal["placeholder"] | None = None
    placeholder_body_bytes: Annotated[int, Within(ge=0, le=1 << 30)] = 0

    def __post_init__(self) -> None:
        given = [name for name in SOURCES if getattr(self, name)]
        if len(given) != 1 and (given or not self.callers):
            listed = ", ".join(f"`{spelling(name)}`" for name in SOURCES)
            raise ValueError(f"one source of the credential is needed: write one of {listed}")
        if sum(map(bool, (self.header, self.query, self.basic is not None))) > 1:
            raise ValueError("`header`, `query` and `basic` exclude each other: keep one of them")
        signs = bool(given) and given[0] in SIGNATURES
        unused = [name for name in _OF_VALUES if getattr(self, name)] if signs else ()
        if unused:
            listed = ", ".join(f"`{spelling(name)}`" for name in unused)
            raise ValueError(f"`{spelling(given[0])}` signs requests and sends no value: remove {listed}")
        if self.jwt is not None and self.jwt.is_of_caller and (self.placeholder or self.scrub_responses):
            raise FieldFault(
                "a token of the caller goes with neither `placeholder` nor `scrubResponses`: remove them",
                "jwt",
                "claims",
            )
        if self.token_exchange is not None and (self.placeholder or self.scrub_responses):
            why = "a token of the caller goes with neither `placeholder` nor `scrubResponses`: remove them"
            raise FieldFault(why, "tokenExchange")
        if self.callers and signs:
            why = f"`callers` choose a value, and `{spelling(given[0])}` signs requests: keep one of them"
            raise FieldFault(why, "callers")
        is_of_caller = self.callers or self.token_exchange or (self.jwt is not None and self.jwt.is_of_caller)
        if is_of_caller and self.template.lower().startswith(_OF_CONNECTIONS):
            why = "this scheme authenticates the connection, which other callers use, too: write another one"
            raise FieldFault(why, "template")
        if self.basic is not None and self.template:
            raise FieldFault("`basic` has a form of its own (RFC 7617): remove `template`", "template")
        # What is set here has to pass these checks again: a process that reads the IR makes the object anew.
        if self.basic is None and not signs:
            if not self.template:
                object.__setattr__(self, "template", "{}" if self.header or self.query else "Bearer {}")
            if not self.header and not self.query:
                object.__setattr__(self, "header", "Authorization")
        if is_protected(self.header):
            raise FieldFault(f"{self.header} is written by the gateway itself and cannot carry a credential", "header")
        if not self.placeholder and (self.require or self.placeholder_body_bytes or self.scrub_as == "Placeholder"):
            raise ValueError(
                "`require`, `placeholderBodyBytes` and `scrubAs: Placeholder` need a `placeholder`: add it"
            )
        if self.bind.hosts and self.allow_plaintext:
            why = "`bind.hosts` are verified names, which no connection without TLS has: keep one of them"
            raise FieldFault(why, "bind", "hosts")


def machine_field(config: Any) -> str:
    """The field of a config that reads something of the machine or runs a program, as it is written; "" for none."""
    return next((path for path, value in settings_in(config) if value and path.rpartition(".")[2] in _OF_MACHINE), "")


#: Fields that lead to a file, a variable of the environment, a program, or to who the machine is in its cloud.
_OF_MACHINE = frozenset(
    ("env", "file", "command", "tokenFile", "authorizationTokenFile", "metadata", "instanceMetadata", "container")
)
