import json
from dataclasses import dataclass

import pytest

from egressproxy.filters.settings import FieldName, FieldValue, FilterConfig, Hostname
from egressproxy.filters.validation import validated


@dataclass(frozen=True, slots=True)
class Sample(FilterConfig):
    field_name: FieldName = "x"
    field_value: FieldValue = ""
    host_name: Hostname = "a.test"


def read(written):
    return validated(Sample, json.dumps(written))


def test_keys_are_camel_case_and_unknown_ones_refused():
    assert read({"fieldName": "X-A"}).field_name == "X-A"
    with pytest.raises(ValueError, match="unknown field"):
        read({"fieldname": "X-A"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fieldName", "a b"), ("fieldName", ""), ("fieldName", "a:"), ("fieldName", "ä"),
        ("fieldValue", "a\nb"), ("fieldValue", " a"), ("fieldValue", "a\0"),
        ("hostName", "a..b"), ("hostName", ""),
         ("hostName", "a.test:80"), ("hostName", "*.a.test"), ("hostName", "0x7f.1"),
    ],
)  # fmt: skip
def test_what_cannot_go_on_the_wire_is_refused(key, value):
    with pytest.raises(ValueError, match=f"config.{key}: "):
        read({key: value})


def test_host_names_are_kept_in_lower_case():
    assert read({"hostName": "API.Example.COM."}).host_name == "api.example.com"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"fieldNam": 1}, "config.fieldNam: unknown field (did you mean fieldName?)"),
        ({"zzz": "c4n4ry"}, "config.zzz: unknown field (known are fieldName, fieldValue, hostName)"),
        ({"fieldValue": "c4n4ry\n"}, "config.fieldValue: the value contains a byte that a field value cannot have"),
    ],
)
def test_a_fault_of_a_config_names_the_field_that_was_meant_and_not_the_value(written, said):
    with pytest.raises(ValueError, match="config") as caught:
        read(written)
    assert str(caught.value).startswith(said)
    assert "c4n4ry" not in str(caught.value)
