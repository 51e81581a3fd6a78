"""What is rendered beside what was counted."""

from __future__ import annotations

from egressproxy.model.certificate import CertificateUse, Validity
from egressproxy.telemetry.counts import Counts
from egressproxy.telemetry.exposition import Exposition

NAME = "egress_certificate_expiry_timestamp_seconds"


def test_the_end_of_each_certificate_is_a_gauge_under_its_object():
    one = Validity(CertificateUse.LISTENER, "Secret", "ns", "front", 0.0, 1_900_000_000.0, 1_900_000_000.0)
    ca = Validity(CertificateUse.CA, "ConfigMap", "ns", "front", 0.0, 1_800_000_000.0, 1_900_000_000.0)
    text, _ = Exposition("1").render(Counts(), validities=(one, ca))
    lines = [line for line in text.decode().splitlines() if line.startswith(NAME)]
    assert lines == [
        f'{NAME}{{kind="Secret",name="front",namespace="ns",use="listener"}} 1.9e+09',
        f'{NAME}{{kind="ConfigMap",name="front",namespace="ns",use="ca"}} 1.8e+09',
    ]
    assert NAME not in Exposition("1").render(Counts())[0].decode().replace(f"# HELP {NAME}", "").replace(
        f"# TYPE {NAME}", ""
    )
