"""What to do on each system, and for each client, so that a CA is trusted there. Text alone: nothing is changed."""

from __future__ import annotations

from pathlib import Path

_TEXT = """\
{file}
SHA-256 {digest}

Whoever has its key can pretend to be any server that it may sign for: trust it where it is needed, and no wider.

One command, with a gateway of its own:
  egressproxy run --config PATH --ca '{file}' -- CMD

One shell, with what names the gateway:
  eval "$(egressproxy env --ca '{file}' --bundle bundle.pem)"

One shell by hand (most clients take these; they replace the system's roots, so that the file has to have those, too):
  cat /etc/ssl/certs/ca-certificates.crt '{file}' > bundle.pem
  export SSL_CERT_FILE=$PWD/bundle.pem         OpenSSL, Python (ssl, httpx), Go, Ruby, the AI SDKs for Python
  export REQUESTS_CA_BUNDLE=$PWD/bundle.pem    requests, and what is built on it
  export CURL_CA_BUNDLE=$PWD/bundle.pem        curl
  export GIT_SSL_CAINFO=$PWD/bundle.pem        git
  export PIP_CERT=$PWD/bundle.pem              pip
  export AWS_CA_BUNDLE=$PWD/bundle.pem         awscli, boto3
  export CARGO_HTTP_CAINFO=$PWD/bundle.pem     cargo
  export GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=$PWD/bundle.pem
  export NODE_EXTRA_CA_CERTS='{file}'          Node.js, npm (in addition to its own roots)

Java (a copy of its trust store):
  cp "$JAVA_HOME/lib/security/cacerts" cacerts && chmod u+w cacerts
  keytool -importcert -noprompt -alias egressproxy -file '{file}' -keystore cacerts -storepass changeit
  export JAVA_TOOL_OPTIONS="-Djavax.net.ssl.trustStore=$PWD/cacerts"

Debian, Ubuntu, Alpine (the whole machine):
  sudo cp '{file}' /usr/local/share/ca-certificates/egressproxy.crt && sudo update-ca-certificates
  undo: sudo rm /usr/local/share/ca-certificates/egressproxy.crt && sudo update-ca-certificates --fresh

Fedora, RHEL, Amazon Linux (the whole machine):
  sudo cp '{file}' /etc/pki/ca-trust/source/anchors/egressproxy.crt && sudo update-ca-trust
  undo: sudo rm /etc/pki/ca-trust/source/anchors/egressproxy.crt && sudo update-ca-trust

macOS (one user):
  security add-trusted-cert -r trustRoot -k ~/Library/Keychains/login.keychain-db '{file}'

Windows (one user):
  certutil -user -addstore Root "{file}"

Firefox, and Chromium on Linux (one profile):
  certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n egressproxy -i '{file}'

Docker image:
  COPY ca.crt /usr/local/share/ca-certificates/egressproxy.crt
  RUN update-ca-certificates
"""


def instructions(file: Path, digest: str) -> str:
    """For people. `file` is the absolute path of the certificates to trust, `digest` that of the first one."""
    return _TEXT.format(file=file, digest=digest)
