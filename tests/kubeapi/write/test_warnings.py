"""Who writes an object is warned of what is not served of it, and of nothing else."""

from __future__ import annotations

from pathlib import Path

from egressproxy.config.compile.compiler import compile_config
from egressproxy.config.compile.interface import Defaults
from egressproxy.config.reading.load import load_text
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.filters.catalog import Catalog
from egressproxy.kubeapi.write.apply import MAX_WARNINGS, AppliedWrite
from egressproxy.kubeapi.write.warnings import MAX_TEXT, with_warnings
from egressproxy.kubeapi.write.write import Verb, Write
from tests.config.compile.kit import FORWARD, policy

WRITE = Write(Verb.CREATE, "egressproxy.io", "v1alpha1", "EgressPolicy", "egresspolicies", "default", "p", b"", "me")


def written(*manifests: str, text: str = "text", warnings: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The warnings of a write of the first EgressPolicy of these."""
    resources = load_text("\n---\n".join(manifests), "config.yaml")
    made = compile_config(resources, Catalog(), Defaults())
    change = AppliedWrite(WRITE, resources, resources.of(EgressPolicy)[0], text, Path("file"), warnings=warnings)
    return with_warnings(change, made).warnings


def test_what_is_not_served_is_told_with_its_field_and_what_to_do():
    (told,) = written(FORWARD, policy("mode: Enforce", name="gv"))
    assert told.startswith("spec.targetRefs[0]: target gv: Accepted is False (TargetNotFound): ")
    assert "in this namespace there is gw" in told


def test_what_is_wrong_with_others_is_not_told():
    assert written(FORWARD, policy("mode: Enforce"), policy("mode: Enforce", name="gv", policy_name="other")) == ()


def test_what_is_only_to_be_known_is_not_told():
    """A listener's policy that overrides the Gateway's is how policies are meant to be written."""
    narrow = policy("mode: Report", policy_name="narrow").replace("name: gw}]", "name: gw, sectionName: forward}]")
    assert written(FORWARD, policy("mode: Enforce"), narrow) == ()


def test_a_deletion_warns_of_nothing():
    assert written(FORWARD, policy("mode: Enforce", name="gv"), text="") == ()


def test_warnings_have_bounds():
    unknown = tuple(f'unknown field "{number}"' for number in range(MAX_WARNINGS))
    assert written(FORWARD, policy("mode: Enforce", name="gv"), warnings=unknown) == unknown
    (told,) = written(FORWARD, policy("mode: Enforce", name="v" * 250))
    assert len(told) <= MAX_TEXT
