"""Names: domains, random labels, look-alikes and shared suffixes."""

from __future__ import annotations

import pytest

from egressproxy.operators.learning.names import Lookalikes, PublicSuffixes, carries_data, domain_of

LIST = """\
// ===BEGIN ICANN DOMAINS===
com
uk
co.uk
*.ck
*.sch.uk
!www.ck
// ===BEGIN PRIVATE DOMAINS===
github.io
s3.amazonaws.com
食狮.example
"""


@pytest.mark.parametrize(
    ("host", "domain"),
    [("api.example.com", "example.com"), ("a.b.example.co.uk", "example.co.uk"), ("co.uk", "co.uk"), ("host", "host")],
)
def test_the_domain_of_a_name_is_estimated(host: str, domain: str):
    assert domain_of(host) == domain


@pytest.mark.parametrize(
    "host", ["nbswy3dpeb3w64tmmqqhi33o.t.example.com", "3f2504e04f8911d39a0c0305e82c3301.example.com",
             ".".join(["part"] * 15) + ".example.com", "q7zk2m9xv4tbw1.q7zk2m9xv4tbw2.example.com"],
)  # fmt: skip
def test_names_that_may_carry_data(host: str):
    assert carries_data(host)


@pytest.mark.parametrize(
    "host", ["objects-githubusercontent.example.com", "customer-uploads-2026-frankfurt.s3.amazonaws.com",
             "generativelanguage.googleapis.com", "production.cloudflare.docker.com", "d111111abcdef8.cloudfront.net"],
)  # fmt: skip
def test_names_made_of_words_do_not(host: str):
    assert not carries_data(host)


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("api.openal.com", ["openai.com"]), ("0penai.com", ["openai.com"]), ("pypl.org", ["pypi.org"]),
        ("githbu.com", ["github.com"]), ("openai.co", ["openai.com"]), ("xn--penai-iye.com", ["openai.com"]),
        ("github.com.login.example", ["github.com"]),
        ("files.openai.com", []), ("github.io", []), ("api.github.com", []), ("shop2.com", []),
    ],
)  # fmt: skip
def test_lookalikes(host: str, known: list[str]):
    assert Lookalikes(["openai.com", "pypi.org", "github.com", "shop1.com"]).of(host) == known


@pytest.mark.parametrize(
    "shared", ["com", "co.uk", "github.io", "s3.amazonaws.com", "amazonaws.com", "foo.ck", "sch.uk", "zzz.zz"]
)
def test_a_shared_suffix_is_nobody_s(shared: str):
    assert not PublicSuffixes(LIST).is_owned(shared)


@pytest.mark.parametrize("owned", ["example.com", "a.example.co.uk", "me.github.io", "www.ck", "a.foo.ck"])
def test_a_domain_below_it_has_an_owner(owned: str):
    assert PublicSuffixes(LIST).is_owned(owned)


def test_half_a_list_is_refused():
    with pytest.raises(ValueError, match="not the whole"):
        PublicSuffixes("com\nco.uk\n")
