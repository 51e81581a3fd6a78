from __future__ import annotations

import click
import pytest

from egressproxy.cli.numbers import memory_size, seconds, whole_number


@pytest.mark.parametrize(("text", "value"), [("1", 1), (" 7", 7), ("256", 256), (1, 1)])
def test_a_whole_number_in_its_range_is_taken(text: object, value: int):
    assert whole_number(1, 256)(text) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("abc", "'abc' is not a whole number"),
        ("", "'' is not a whole number"),
        ("1.5", "'1.5' is not a whole number"),
        ("0", "0 is too small"),
        ("-1", "-1 is too small"),
        ("257", "257 is too large"),
    ],
)
def test_another_is_refused_with_its_range(text: str, why: str):
    with pytest.raises(click.BadParameter, match=f"^{why}; give one from 1 to 256$"):
        whole_number(1, 256)(text)


@pytest.mark.parametrize(("text", "value"), [("0", 0.0), ("2.5", 2.5), (10.0, 10.0), ("86400", 86400.0)])
def test_seconds_are_taken_with_a_fraction_or_without(text: object, value: float):
    assert seconds(86_400)(text) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("10s", "'10s' is not a number"),
        ("", "'' is not a number"),
        ("nan", "'nan' is not a number"),
        ("-0.5", "-0.5 is too small"),
        ("inf", "inf is too large"),
        ("1e400", "1e400 is too large"),
        ("86401", "86401 is too large"),
    ],
)
def test_other_seconds_are_refused_with_an_example(text: str, why: str):
    with pytest.raises(click.BadParameter, match=f"^{why}; give seconds from 0 to 86,400, such as 10 or 2.5"):
        seconds(86_400)(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("67108864", 64 << 20), ("64Mi", 64 << 20), ("2Gi", 2 << 30), ("70000k", 70_000_000), ("1G", 10**9)],
)
def test_a_size_of_memory_is_read_as_kubernetes_writes_it(text: str, size: int):
    assert memory_size(64 << 20)(text) == size


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("much", "'much' is no size of memory; give bytes, or a size such as 512Mi or 2Gi"),
        ("1.5Gi", "'1.5Gi' is no size"),
        ("-1", "'-1' is no size"),
        ("512MB", "'512MB' is no size"),
        ("\u0665Gi", "is no size"),
        ("1Mi", "1Mi is too small; give 64Mi or more, or 0 for no limit"),
        ("512", "512 is too small"),
    ],
)
def test_another_size_is_refused_with_what_is_one(text: str, why: str):
    with pytest.raises(click.BadParameter, match=why):
        memory_size(64 << 20)(text)
