"""What sslyze finds on a listener with TLS: nothing that Mozilla's "intermediate" profile would refuse, but for what is
the test certificate's fault, and two curves that OpenSSL offers besides. `make sslyze` installs it for itself.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.world import Require
from tests.e2e.world import tls_secret
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S

#: Of the certificate, which no public authority has signed; and of OpenSSL's list of curves (X448, secp521r1).
EXPECTED = {"certificate_path_validation", "maximum_certificate_lifespan", "tls_curves"}
REFUSED = ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1")


@pytest.mark.parametrize("protocol", ["HTTPS", "egressproxy.io/forward-proxy"])
def test_sslyze_finds_nothing_on_a_listener(tmp_path: Path, require: Require, protocol: str):
    require("sslyze")
    pki, port = Pki(), free_port()
    front = pki.issue("front.test")
    tls = {"mode": "Terminate", "certificateRefs": [{"name": "front"}]}
    objects = [
        m.gateway({"name": "front", "port": port, "protocol": protocol, "tls": tls}), m.policy(),
        tls_secret("front", chain(front), front.private_key_pem.bytes()),
    ]  # fmt: skip
    report = tmp_path / "report.json"
    with GatewayProcess(tmp_path / "gw", objects):
        command = ["sslyze", "--sni", "front.test", "--mozilla_config=intermediate", "--resum", f"--json_out={report}"]
        done = subprocess.run(
            [*command, f"127.0.0.1:{port}"], capture_output=True, text=True, timeout=WAIT_S, check=False
        )
    issues = {line.split("* ")[1].split(":")[0] for line in done.stdout.splitlines() if line.startswith("        * ")}
    assert issues <= EXPECTED, done.stdout
    ((scan,),) = (json.loads(report.read_text())["server_scan_results"],)
    found: dict[str, Any] = {name: each["result"] for name, each in scan["scan_result"].items()}
    assert not any(found[f"{version}_cipher_suites"]["is_tls_version_supported"] for version in REFUSED)
    for version in ("tls_1_2", "tls_1_3"):
        suites = [each["cipher_suite"]["name"] for each in found[f"{version}_cipher_suites"]["accepted_cipher_suites"]]
        assert suites
        assert all("GCM" in suite or "CHACHA20" in suite for suite in suites)
    assert not found["tls_compression"]["supports_compression"]
    assert not found["heartbleed"]["is_vulnerable_to_heartbleed"]
    assert not found["openssl_ccs_injection"]["is_vulnerable_to_ccs_injection"]
    assert found["robot"]["robot_result"] == "NOT_VULNERABLE_RSA_NOT_SUPPORTED"
    assert found["tls_fallback_scsv"]["supports_fallback_scsv"]
    renegotiation = found["session_renegotiation"]
    assert renegotiation["supports_secure_renegotiation"]
    assert not renegotiation["is_vulnerable_to_client_renegotiation_dos"]
    assert found["tls_extended_master_secret"]["supports_ems_extension"]
