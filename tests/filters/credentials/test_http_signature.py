"""RFC 9421: the signatures of appendix B, made with the keys of appendix B."""

from __future__ import annotations

from base64 import b64decode

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from egressproxy.filters.credentials.http_signature import ALGORITHMS, content_digest, identifier, signature_base
from egressproxy.filters.credentials.signed_request import SignedRequest
from egressproxy.filters.credentials.signing_key import private_signer, shared_signer
from egressproxy.model.fields import Fields
from egressproxy.model.secret import SecretBytes

#: Appendix B.1.2.
RSA_PSS = b"""-----BEGIN PRIVATE KEY-----
MIIEvgIBADALBgkqhkiG9w0BAQoEggSqMIIEpgIBAAKCAQEAr4tmm3r20Wd/Pbqv
P1s2+QEtvpuRaV8Yq40gjUR8y2Rjxa6dpG2GXHbPfvMs8ct+Lh1GH45x28Rw3Ry5
3mm+oAXjyQ86OnDkZ5N8lYbggD4O3w6M6pAvLkhk95AndTrifbIFPNU8PPMO7Oyr
FAHqgDsznjPFmTOtCEcN2Z1FpWgchwuYLPL+Wokqltd11nqqzi+bJ9cvSKADYdUA
AN5WUtzdpiy6LbTgSxP7ociU4Tn0g5I6aDZJ7A8Lzo0KSyZYoA485mqcO0GVAdVw
9lq4aOT9v6d+nb4bnNkQVklLQ3fVAvJm+xdDOp9LCNCN48V2pnDOkFV6+U9nV5oy
c6XI2wIDAQABAoIBAQCUB8ip+kJiiZVKF8AqfB/aUP0jTAqOQewK1kKJ/iQCXBCq
pbo360gvdt05H5VZ/RDVkEgO2k73VSsbulqezKs8RFs2tEmU+JgTI9MeQJPWcP6X
aKy6LIYs0E2cWgp8GADgoBs8llBq0UhX0KffglIeek3n7Z6Gt4YFge2TAcW2WbN4
XfK7lupFyo6HHyWRiYHMMARQXLJeOSdTn5aMBP0PO4bQyk5ORxTUSeOciPJUFktQ
HkvGbym7KryEfwH8Tks0L7WhzyP60PL3xS9FNOJi9m+zztwYIXGDQuKM2GDsITeD
2mI2oHoPMyAD0wdI7BwSVW18p1h+jgfc4dlexKYRAoGBAOVfuiEiOchGghV5vn5N
RDNscAFnpHj1QgMr6/UG05RTgmcLfVsI1I4bSkbrIuVKviGGf7atlkROALOG/xRx
DLadgBEeNyHL5lz6ihQaFJLVQ0u3U4SB67J0YtVO3R6lXcIjBDHuY8SjYJ7Ci6Z6
vuDcoaEujnlrtUhaMxvSfcUJAoGBAMPsCHXte1uWNAqYad2WdLjPDlKtQJK1diCm
rqmB2g8QE99hDOHItjDBEdpyFBKOIP+NpVtM2KLhRajjcL9Ph8jrID6XUqikQuVi
4J9FV2m42jXMuioTT13idAILanYg8D3idvy/3isDVkON0X3UAVKrgMEne0hJpkPL
FYqgetvDAoGBAKLQ6JZMbSe0pPIJkSamQhsehgL5Rs51iX4m1z7+sYFAJfhvN3Q/
OGIHDRp6HjMUcxHpHw7U+S1TETxePwKLnLKj6hw8jnX2/nZRgWHzgVcY+sPsReRx
NJVf+Cfh6yOtznfX00p+JWOXdSY8glSSHJwRAMog+hFGW1AYdt7w80XBAoGBAImR
NUugqapgaEA8TrFxkJmngXYaAqpA0iYRA7kv3S4QavPBUGtFJHBNULzitydkNtVZ
3w6hgce0h9YThTo/nKc+OZDZbgfN9s7cQ75x0PQCAO4fx2P91Q+mDzDUVTeG30mE
t2m3S0dGe47JiJxifV9P3wNBNrZGSIF3mrORBVNDAoGBAI0QKn2Iv7Sgo4T/XjND
dl2kZTXqGAk8dOhpUiw/HdM3OGWbhHj2NdCzBliOmPyQtAr770GITWvbAI+IRYyF
S7Fnk6ZVVVHsxjtaHy1uJGFlaZzKR4AGNaUTOJMs6NadzCmGPAxNQQOCqoUjn4XR
rOjr9w349JooGXhOxbu8nOxX
-----END PRIVATE KEY-----
"""
#: Appendix B.1.3.
ECC_P256 = b"""-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIFKbhfNZfpDsW43+0+JjUr9K+bTeuxopu653+hBaXGA7oAoGCCqGSM49
AwEHoUQDQgAEqIVYZVLCrPZHGHjP17CTW0/+D9Lfw0EkjqF7xB4FivAxzic30tMM
4GF+hR6Dxh71Z50VGGdldkkDXZCnTNnoXQ==
-----END EC PRIVATE KEY-----
"""
#: Appendix B.1.4.
ED25519 = b"""-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF
-----END PRIVATE KEY-----
"""
#: Appendix B.1.5.
SHARED = b64decode("uzvJfB4u3N0Jy4T7NZ75MDVcr8zSTInedJtkgcu46YW4XByzNJjxBdtjUkdJPBtbmHhIDi6pcl8jsasjlTMtDQ==")
BODY = b'{"hello": "world"}'
DIGEST = b"sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:"
LINES = (
    (b"host", b"example.com"), (b"date", b"Tue, 20 Apr 2021 02:07:55 GMT"), (b"content-type", b"application/json"),
    (b"content-digest", DIGEST), (b"content-length", b"18"),
)  # fmt: skip
AT = 1618884473
#: Of appendix B.2: label, components, parameters, base without its last line, signature.
OF_APPENDIX_B = [
    (
        "B.2.1", [], {"keyid": "test-key-rsa-pss", "nonce": "b3k2pp5k7z-50gnwp.yemd"},
        b'();created=1618884473;keyid="test-key-rsa-pss";nonce="b3k2pp5k7z-50gnwp.yemd"', b"",
        "d2pmTvmbncD3xQm8E9ZV2828BjQWGgiwAaw5bAkgibUopemLJcWDy/lkbbHAve4cRAtx31Iq786U7it++wgGxbtRxf8Udx7zFZsckzXaJMkA"
        "7ChG52eSkFxykJeNqsrWH5S+oxNFlD4dzVuwe8DhTSja8xxbR/Z2cOGdCbzR72rgFWhzx2VjBqJzsPLMIQKhO4DGezXehhWwE56YCE+O6c0m"
        "KZsfxVrogUvA4HELjVKWmAvtl6UnCh8jYzuVG5WSb/QEVPnP5TmcAnLH1g+s++v6d4s8m0gCw1fV5/SITLq9mhho8K3+7EPYTU8IU1bLhdxO"
        "5Nyt8C8ssinQ98Xw9Q==",
    ),
    (
        "B.2.2", ["@authority", "content-digest", '@query-param;name="Pet"'],
        {"keyid": "test-key-rsa-pss", "tag": "header-example"},
        b'("@authority" "content-digest" "@query-param";name="Pet");created=1618884473;keyid="test-key-rsa-pss"'
        b';tag="header-example"',
        b'"@authority": example.com\n"content-digest": ' + DIGEST + b'\n"@query-param";name="Pet": dog\n',
        "LjbtqUbfmvjj5C5kr1Ugj4PmLYvx9wVjZvD9GsTT4F7GrcQEdJzgI9qHxICagShLRiLMlAJjtq6N4CDfKtjvuJyE5qH7KT8UCMkSowOB4+EC"
        "xCmT8rtAmj/0PIXxi0A0nxKyB09RNrCQibbUjsLS/2YyFYXEu4TRJQzRw1rLEuEfY17SARYhpTlaqwZVtR8NV7+4UKkjqpcAoFqWFQh62s7C"
        "l+H2fjBSpqfZUJcsIk4N6wiKYd4je2U/lankenQ99PZfB4jY3I5rSV2DSBVkSFsURIjYErOs0tFTQosMTAoxk//0RoKUqiYY8Bh0aaUEb0rQ"
        "l3/XaVe4bXTugEjHSw==",
    ),
    (
        "B.2.3",
        ["date", "@method", "@path", "@query", "@authority", "content-type", "content-digest", "content-length"],
        {"keyid": "test-key-rsa-pss"},
        b'("date" "@method" "@path" "@query" "@authority" "content-type" "content-digest" "content-length")'
        b';created=1618884473;keyid="test-key-rsa-pss"',
        b'"date": Tue, 20 Apr 2021 02:07:55 GMT\n"@method": POST\n"@path": /foo\n"@query": ?param=Value&Pet=dog\n'
        b'"@authority": example.com\n"content-type": application/json\n"content-digest": ' + DIGEST
        + b'\n"content-length": 18\n',
        "bbN8oArOxYoyylQQUU6QYwrTuaxLwjAC9fbY2F6SVWvh0yBiMIRGOnMYwZ/5MR6fb0Kh1rIRASVxFkeGt683+qRpRRU5p2voTp768ZrCUb38"
        "K0fUxN0O0iC59DzYx8DFll5GmydPxSmme9v6ULbMFkl+V5B1TP/yPViV7KsLNmvKiLJH1pFkh/aYA2HXXZzNBXmIkoQoLd7YfW91kE9o/CCo"
        "C1xMy7JA1ipwvKvfrs65ldmlu9bpG6A9BmzhuzF8Eim5f8ui9eH8LZH896+QIF61ka39VBrohr9iyMUJpvRX2Zbhl5ZJzSRxpJyoEZAFL2FU"
        "o5fTIztsDZKEgM4cUA==",
    ),
    (
        "B.2.5", ["date", "@authority", "content-type"], {"keyid": "test-shared-secret"},
        b'("date" "@authority" "content-type");created=1618884473;keyid="test-shared-secret"',
        b'"date": Tue, 20 Apr 2021 02:07:55 GMT\n"@authority": example.com\n"content-type": application/json\n',
        "pxcQw6G3AjtMBQjwo8XzkZf/bws5LelbaMk5rGIGtE8=",
    ),
    (
        "B.2.6", ["date", "@method", "@path", "@authority", "content-type", "content-length"],
        {"keyid": "test-key-ed25519"},
        b'("date" "@method" "@path" "@authority" "content-type" "content-length")'
        b';created=1618884473;keyid="test-key-ed25519"',
        b'"date": Tue, 20 Apr 2021 02:07:55 GMT\n"@method": POST\n"@path": /foo\n"@authority": example.com\n'
        b'"content-type": application/json\n"content-length": 18\n',
        "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==",
    ),
]  # fmt: skip


def request_of_appendix_b(target=b"/foo?param=Value&Pet=dog", host=b"example.com", lines=LINES):
    return SignedRequest(b"POST", host, target, Fields.of(lines), BODY, now=AT)


def verify_pss(signature: bytes, base: bytes) -> None:
    key = load_pem_private_key(RSA_PSS, None)
    assert isinstance(key, rsa.RSAPrivateKey)
    key.public_key().verify(signature, base, padding.PSS(padding.MGF1(hashes.SHA512()), 64), hashes.SHA512())


@pytest.mark.parametrize(
    ("components", "parameters", "told", "lines", "signature"), [case[1:] for case in OF_APPENDIX_B],
    ids=[case[0] for case in OF_APPENDIX_B],
)  # fmt: skip
def test_the_signatures_of_appendix_b(components, parameters, told, lines, signature):
    base, signed = signature_base(request_of_appendix_b(), components, {"created": AT, **parameters})
    assert signed == told
    assert base == lines + b'"@signature-params": ' + told
    published = b64decode(signature)
    if parameters["keyid"] == "test-shared-secret":
        assert shared_signer(SecretBytes(SHARED))(base) == published
    elif parameters["keyid"] == "test-key-ed25519":
        assert private_signer(SecretBytes(ED25519), ALGORITHMS["ed25519"])[1](base) == published
    else:
        verify_pss(published, base)
        verify_pss(private_signer(SecretBytes(RSA_PSS), ALGORITHMS["rsa-pss-sha512"])[1](base), base)


def test_p_256_as_in_appendix_b_3():
    """The example of a gateway that says who its client is."""
    said = (
        b":MIIBqDCCAU6gAwIBAgIBBzAKBggqhkjOPQQDAjA6MRswGQYDVQQKDBJMZXQncyBBdXRoZW50aWNhdGUxGzAZBgNVBAMMEkxBIEludGVybW"
        b"VkaWF0ZSBDQTAeFw0yMDAxMTQyMjU1MzNaFw0yMTAxMjMyMjU1MzNaMA0xCzAJBgNVBAMMAkJDMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE"
        b"8YnXXfaUgmnMtOXU/IncWalRhebrXmckC8vdgJ1p5Be5F/3YC8OthxM4+k1M6aEAEFcGzkJiNy6J84y7uzo9M6NyMHAwCQYDVR0TBAIwADAf"
        b"BgNVHSMEGDAWgBRm3WjLa38lbEYCuiCPct0ZaSED2DAOBgNVHQ8BAf8EBAMCBsAwEwYDVR0lBAwwCgYIKwYBBQUHAwIwHQYDVR0RAQH/BBMw"
        b"EYEPYmRjQGV4YW1wbGUuY29tMAoGCCqGSM49BAMCA0gAMEUCIBHda/r1vaL6G3VliL4/Di6YK0Q6bMjeSkC3dFCOOB8TAiEAx/kHSB4urmiZ"
        b"0NX5r5XarmPk0wmuydBVoU4hBVZ1yhk=:"
    )
    request = request_of_appendix_b(host=b"service.internal.example", lines=((b"client-cert", said),))
    components = ["@path", "@query", "@method", "@authority", "client-cert"]
    base, _ = signature_base(request, components, {"created": AT, "keyid": "test-key-ecc-p256"})
    published = b64decode("xVMHVpawaAC/0SbHrKRs9i8I3eOs5RtTMGCWXm/9nvZzoHsIg6Mce9315T6xoklyy0yzhD9ah4JHRwMLOgmizw==")
    key = load_pem_private_key(ECC_P256, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    for signature in (published, private_signer(SecretBytes(ECC_P256), ALGORITHMS["ecdsa-p256-sha256"])[1](base)):
        assert len(signature) == 64  # section 3.3.4: r and s, not DER
        der = utils.encode_dss_signature(int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big"))
        key.public_key().verify(der, base, ec.ECDSA(hashes.SHA256()))


def test_the_digest_of_appendix_b():
    assert content_digest(BODY, "sha-512") == DIGEST


@pytest.mark.parametrize(
    ("target", "name", "value"),
    [  # section 2.2.8
        (b"/p?param=value&foo=bar&baz=batman&qux=", "baz", b"batman"),
        (b"/p?param=value&foo=bar&baz=batman&qux=", "qux", b""),
        (b"/p?param=value&foo=bar&baz=batman&qux=", "param", b"value"),
        (b"/p?var=this%20is%20a%20big%0Amultiline%20value", "var", b"this%20is%20a%20big%0Amultiline%20value"),
        (b"/p?bar=with+plus+whitespace", "bar", b"with%20plus%20whitespace"),
        (b"/p?fa%C3%A7ade%22%3A%20=something", "fa%C3%A7ade%22%3A%20", b"something"),
        (b"/p?a=~%0d%0a\"x", "a", b"%7E%0D%0A%22x"),
        (b"/p?a=%ff", "a", b"%EF%BF%BD"),
    ],
)  # fmt: skip
def test_parameters_of_the_query(target, name, value):
    component = f'@query-param;name="{name}"'
    base, _ = signature_base(request_of_appendix_b(target), [component], {})
    assert base.split(b"\n")[0] == f'"@query-param";name="{name}": '.encode() + value


def test_a_parameter_that_is_there_twice_cannot_be_signed():
    with pytest.raises(ValueError, match="stands there 2 times"):
        signature_base(request_of_appendix_b(b"/?a=1&%61=2"), ['@query-param;name="a"'], {})


@pytest.mark.parametrize(
    ("component", "request_", "value"),
    [
        ("@authority", request_of_appendix_b(host=b"WWW.Example.com:443"), b"www.example.com"),
        ("@authority", request_of_appendix_b(host=b"a.example:8443"), b"a.example:8443"),
        ("@target-uri", request_of_appendix_b(b"/a?b"), b"https://example.com/a?b"),
        ("@request-target", request_of_appendix_b(b"/a?b"), b"/a?b"),
        ("@scheme", request_of_appendix_b(), b"https"),
        ("@query", request_of_appendix_b(b"/a"), b"?"),
        ("@path", request_of_appendix_b(b"/a%2Fb/../c"), b"/a%2Fb/../c"),
        ("accept", request_of_appendix_b(lines=((b"accept", b"a/b"), (b"Accept", b" */*".strip()))), b"a/b, */*"),
    ],
)
def test_components(component, request_, value):
    base, _ = signature_base(request_, [component], {})
    assert base.split(b"\n")[0] == f'"{component}": '.encode() + value


def test_what_the_request_has_not_is_not_said_to_be_signed():
    _, told = signature_base(request_of_appendix_b(lines=()), ["date", "@method", '@query-param;name="x"'], {})
    assert told == b'("@method")'


def test_texts_are_quoted():
    _, told = signature_base(request_of_appendix_b(), [], {"keyid": 'a"b\\c;x="y'})
    assert told == b'();keyid="a\\"b\\\\c;x=\\"y"'


@pytest.mark.parametrize("component", ["Date", "@status", 'date";sf', "@query-param", '@query-param;name="a b"', ""])
def test_what_is_no_component(component):
    with pytest.raises(ValueError, match="cannot be signed"):
        identifier(component)
