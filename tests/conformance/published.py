"""Backend manifests with the fields and the enum spellings of every published form, and what is to become of each.

The values are ours, the fields are letter by letter those of: the AI Gateway working group's egress proposal in its
versions (kubernetes-sigs/wg-ai-gateway, proposals/10-egress-gateways.md), its prototypes (k8s/crds, config/samples,
prototypes/*/config/samples), its draft of a Backend GEP for egress and service decoration, and GEP-4894.
"""

from __future__ import annotations

from dataclasses import dataclass

HOST = "models.test"

PROPOSAL = "gateway.networking.k8s.io/v1alpha1"
PROTOTYPE = "ainetworking.prototype.x-k8s.io/v0alpha0"

#: The extensions that come with the examples of the proposal, in its first version and in later ones.
INJECTOR = """
  extensions:
  - name: inject-credentials
    type: gateway.networking.k8s.io/CredentialInjector:v1
    phase: request-headers
    priority: 10
    failOpen: false
    config:
      secretRef:
        name: models-api-key
        namespace: platform-keys
"""
INJECTOR_AND_QOS = f"""{INJECTOR.rstrip()}
  - name: rate-qos
    type: gateway.networking.k8s.io/QoSController:v1
    phase: backend-request
    priority: 30
    failOpen: true
    config:
      requestsPerMinute: 1000
"""


@dataclass(frozen=True)
class Form:
    """`port` and `is_tls`: how the origin is reached; `client` the common name that it is shown ("" none).

    `is_http2` where the form says which version of HTTP is spoken. `refused` is (type, reason) of the condition that
    says why it is not served. `conditions` hold besides.
    """

    name: str
    text: str
    port: int = 443
    is_tls: bool = True
    is_http2: bool | None = None
    client: str = ""
    has_key: bool = False
    refused: tuple[str, str] | None = None
    conditions: tuple[tuple[str, str], ...] = ()
    #: What a route calls its kind, where not by its own name.
    called: str = ""
    #: The Host that the origin sees: its name, or of Pods the client's.
    host: str = HOST
    #: Labels of the Pod that the origin is.
    labels: tuple[tuple[str, str], ...] = ()


def first(mode: str, more: str = "") -> str:
    """The first version of the proposal: port below fqdn, tls beside destination."""
    return f"""
apiVersion: {PROPOSAL}
kind: Backend
metadata:
  name: models-backend
spec:
  destination:
    type: FQDN
    fqdn:
      hostname: {HOST}
      port: 443
  tls:
    mode: {mode}
    sni: {HOST}
    caBundleRef:
      name: vendor-ca{more}{INJECTOR_AND_QOS}"""


def second(mode: str, kind: str = "Backend", more: str = "", number: int = 443) -> str:
    """Later versions: ports with protocol TLS, each with its tls; the kind was renamed on the way."""
    return f"""
apiVersion: {PROPOSAL}
kind: {kind}
metadata:
  name: models-backend
spec:
  destination:
    type: FQDN
    fqdn:
      hostname: {HOST}
    ports:
    - number: {number}
      protocol: TLS
      tls:
        mode: {mode}
        sni: {HOST}
        caBundleRef:
          name: vendor-ca{more}{INJECTOR}"""


CLIENT_BESIDE = """
    clientCertificateRef:
      name: egress-client-cert"""
CLIENT_IN_PORT = """
        clientCertificateRef:
          name: egress-client-cert"""


def prototype(kind: str, port: str, more: str = "") -> str:
    """What the samples of the prototypes have."""
    return f"""
apiVersion: {PROTOTYPE}
kind: {kind}
metadata:
  name: bin-backend
spec:
  destination:
    type: Fqdn
    fqdn:
      hostname: {HOST}
    ports:
{port}{more}"""


#: Without tls, so that TLS is the default; and with what switches it off.
UNSAID_80 = "    - number: 80\n      protocol: HTTP\n"
PLAIN_8080 = "    - number: 8080\n      protocol: HTTP\n      tls: {mode: None}\n"
UNVERIFIED = f"""    - number: 443
      protocol: HTTP
      tls:
        mode: Simple
        insecureSkipVerify: true
        sni: {HOST}
"""
#: Everything that the types of the prototype have.
WHOLE = f"""    - number: 443
      protocol: MCP
      tls:
        mode: Mutual
        sni: {HOST}
        caBundleRef:
        - group: ""
          kind: ConfigMap
          name: vendor-ca
        insecureSkipVerify: false
        clientCertificateRef:
          name: egress-client-cert
        subjectAltNames:
        - {HOST}
      protocolOptions:
        mcp:
          version: "2025-06-18"
          path: /mcp
"""
RAW_CONFIG = """
  extensions:
  - name: inject-credentials
    type: CredentialInjector
    rawConfig:
      secretRef:
        name: models-api-key
        namespace: platform-keys
"""


def backend(spec: str) -> str:
    """What the drafts and GEPs have."""
    return f"""
apiVersion: {PROPOSAL}
kind: Backend
metadata:
  name: models-api
spec:
{spec}"""


FQDN = f"""  destination:
    type: FQDN
    fqdn:
      hostname: {HOST}
"""
#: The draft of the GEP: TLS and protocol below fqdn, ports with name and port.
DRAFT = backend(f"""{FQDN}      tls:
        serverName: {HOST}
        clientCertificate:
          secretRef:
            name: egress-client-cert
            key: tls.crt
    ports:
    - name: https
      port: 443
      protocol: HTTPS
""")
DRAFT_EXTENSIONS = backend(f"""{FQDN}  extensions:
  - type: "vendor.example/connection-pool"
    config:
      maxConnections: 100
      timeout: 30s
  - type: "vendor.example/circuit-breaker"
    config:
      failureThreshold: 5
""")
DRAFT_FILTERS = backend(f"""{FQDN}  filters:
  - type: ExtensionRef
    extensionRef:
      name: connection-pool
      kind: ConnectionPoolPolicy
""")
DRAFT_PROTOCOL = backend(f"""{FQDN}      protocol:
        type: "vendor.example/their-api"
        options:
          version: "2023-06-01"
          streaming: "true"
""")
GEP_4894 = backend(f"""  type: ExternalHostname
  externalHostname:
    hostname: {HOST}
  tls:
    mode: ClientAndServer
    clientCertificateRef:
      name: egress-client-cert
  port: 443
""")
GEP_4894_SELECTOR = backend("""  type: EndpointSelector
  endpointSelector:
    selectorRef:
      name: my-service
  port: 8080
  tls:
    mode: ServerOnly
""")
#: An earlier draft of it: the validation of BackendTLSPolicy in the tls of a port, and endpoints by a selector.
GEP_4488 = backend(f"""{FQDN}    ports:
    - number: 443
      protocol: HTTP
      tls:
        mode: Mutual
        clientCertificateRef:
          name: egress-client-cert
        validation:
          hostname: {HOST}
          caCertificateRefs:
          - group: ""
            kind: ConfigMap
            name: vendor-ca
""")
GEP_4488_SELECTOR = backend("""  destination:
    type: EndpointSelector
    endpointSelector:
      selectorRef:
        name: my-service
    ports:
    - number: 8080
      protocol: HTTP
""")
INSECURE = (("Insecure", "True"),)


def x_backend(port: str, more: str = "", tls: str = "") -> str:
    """XBackend as its types have it (gateway.networking.x-k8s.io); the port was once called otherwise."""
    validation = f"""
    validation:
      hostname: {HOST}"""
    return f"""
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackend
metadata:
  name: models-api
spec:
  type: ExternalHostname
  port:
    {port}
  externalHostname:
    hostname: {HOST}{more}
  tls:
    mode: ServerOnly{tls or validation}
"""


X_BACKEND_CA = f"""
    validation:
      hostname: {HOST}
      caCertificateRefs:
      - group: ""
        kind: ConfigMap
        name: vendor-ca"""
X_BACKEND_SELECTOR = """
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackend
metadata:
  name: models-api
spec:
  type: EndpointSelector
  port:
    number: 8080
  endpointSelector:
    matchLabels:
      app: models
"""
X_BACKEND_H2C = f"""
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackend
metadata:
  name: models-api
spec:
  type: ExternalHostname
  port:
    number: 8080
  externalHostname:
    hostname: {HOST}
  protocol: H2C
"""


def clear(form: str) -> str:
    """Without its extensions: a key is not sent in plain text."""
    return form.partition("  extensions:")[0]


FORMS = (
    Form("first-simple", first("SIMPLE"), has_key=True),
    Form("first-mutual", first("Mutual", CLIENT_BESIDE), client="egress-client", has_key=True),
    Form("first-terminate", first("Terminate"), refused=("Accepted", "UnsupportedValue")),
    Form("first-passthrough", first("Passthrough"), refused=("Accepted", "UnsupportedValue")),
    Form("second-simple", second("Simple"), has_key=True),
    Form("second-simple-capitals", second("SIMPLE"), has_key=True),
    Form("second-mutual", second("MUTUAL", more=CLIENT_IN_PORT), client="egress-client", has_key=True),
    Form("second-platform", second("PLATFORM_PROVIDED"), has_key=True),
    Form("second-platform-camel", second("PlatformProvided"), has_key=True),
    Form("second-passthrough", second("PASSTHROUGH"), refused=("Accepted", "UnsupportedValue")),
    Form(
        "second-insecure", clear(second("INSECURE_DISABLE", number=8080)), 8080, is_tls=False, conditions=INSECURE
    ),
    Form("second-none", clear(second("None", number=8080)), 8080, is_tls=False, conditions=INSECURE),
    Form("renamed-simple", second("Simple", "XBackendDestination"), has_key=True),
    Form("renamed-as-backend", second("Simple", "XBackendDestination"), has_key=True, called="Backend"),
    Form(
        "renamed-mutual", second("Mutual", "XBackendDestination", CLIENT_IN_PORT), client="egress-client", has_key=True
    ),
    Form("prototype-80", prototype("Backend", UNSAID_80), 80),
    Form("prototype-80-renamed", prototype("XBackendDestination", UNSAID_80), 80, called="Backend"),
    Form("prototype-8080", prototype("XBackendDestination", PLAIN_8080), 8080, is_tls=False, conditions=INSECURE),
    Form("prototype-unverified", prototype("XBackendDestination", UNVERIFIED), called="Backend", conditions=INSECURE),
    Form("prototype-whole", prototype("XBackendDestination", WHOLE), client="egress-client"),
    Form("prototype-raw-config", prototype("Backend", WHOLE, RAW_CONFIG), client="egress-client", has_key=True),
    Form("draft", DRAFT, client="egress-client"),
    Form("draft-extensions", DRAFT_EXTENSIONS, refused=("Degraded", "UnsupportedExtensionType")),
    Form("draft-filters", DRAFT_FILTERS, refused=("Accepted", "UnsupportedValue")),
    Form("draft-protocol", DRAFT_PROTOCOL, refused=("ResolvedRefs", "UnsupportedProtocol")),
    Form("gep-4894", GEP_4894, client="egress-client"),
    Form("gep-4488", GEP_4488, client="egress-client"),
    Form("gep-4488-selector", GEP_4488_SELECTOR, refused=("Accepted", "UnsupportedValue")),
    Form("gep-4894-selector", GEP_4894_SELECTOR, refused=("Accepted", "UnsupportedValue")),
    Form("xbackend", x_backend("number: 443", tls=X_BACKEND_CA)),
    Form("xbackend-guide", x_backend("port: 443")),
    Form("xbackend-wss", x_backend("number: 443", "\n  protocol: WSS")),
    Form("xbackend-h2c", X_BACKEND_H2C, 8080, is_tls=False, is_http2=True, conditions=INSECURE),
    Form("xbackend-grpc", x_backend("number: 443", "\n  protocol: GRPC"), is_http2=True),
    Form(
        "xbackend-selector", X_BACKEND_SELECTOR, 8080, is_tls=False, host="xbackend-selector.test",
        labels=(("app", "models"),),
    ),
)  # fmt: skip
