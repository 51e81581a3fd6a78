from __future__ import annotations

import json
import pickle
import random
import tracemalloc
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.config.builtin import open_proxy
from egressproxy.config.reading.problems import ConfigError, Problem, Severity
from egressproxy.model.work import at_once
from egressproxy.processes.loader.result import (
    OBJECTS,
    CompiledConfig,
    ListenerAddress,
    builtin,
    pack_shown,
    read_answer,
    shown,
    write_answer,
)
from egressproxy.processes.packing import unpacking

PROBLEM = Problem(
    "a.yaml", 3, 5, "Gateway default/gw", "spec.listeners[0].port", "99999 is more than 65535", "write less"
)
FINDINGS = (PROBLEM, replace(PROBLEM, severity=Severity.UNSERVED, code="NotServed"))
LOADED = CompiledConfig(b"spec", (ListenerAddress("::1", 80, "HTTP", "ns/gw/l"),), 3, b"shown", FINDINGS, b"memory")


def test_an_answer_comes_back_as_it_was():
    assert read_answer(write_answer(LOADED)) == LOADED


def test_a_refusal_comes_back_with_every_problem_and_its_place():
    with pytest.raises(ConfigError) as caught:
        read_answer(write_answer(ConfigError([PROBLEM, PROBLEM])))
    assert caught.value.problems == (PROBLEM, PROBLEM)


@given(st.binary(max_size=100))
def test_anything_else_is_no_answer(data: bytes):
    for wrong in (data, write_answer(LOADED) + b"x", write_answer(LOADED)[:-1]):
        with pytest.raises(ValueError):
            read_answer(wrong)


def test_an_answer_makes_no_objects():
    with pytest.raises(ValueError):
        read_answer(pickle.dumps(("loaded", [print])))


def test_what_is_shown_comes_back_in_order_with_generation_and_status():
    objects = [
        (
            ("g", "Kind", "ns", f"n{number}"),
            {"spec": {"number": number}},
            number,
            {"ok": True} if number % 2 else None,
            "2024-01-01T00:00:00Z" if number % 2 else "",
        )
        for number in range(2 * OBJECTS + 1)
    ]
    back = list(shown(pack_shown(iter(objects))))
    assert [
        (
            (each.group, each.kind, each.namespace, each.name),
            json.loads(each.manifest),
            each.generation,
            each.status and json.loads(each.status),
            each.created,
        )
        for each in back
    ] == objects


def test_nothing_is_shown_of_nothing():
    assert list(shown(b"")) == list(shown(pack_shown([]))) == []


def test_a_value_that_json_does_not_know_is_not_shown():
    (found,) = shown(pack_shown([(("", "K", "", "n"), {"spec": b"bytes"}, 1, None, "")]))
    assert json.loads(found.manifest) == {"spec": "redacted"}


def test_secrets_are_in_no_text_of_it():
    assert "spec" not in repr(replace(LOADED, findings=()))
    assert "memory" not in repr(LOADED)


def test_the_builtin_gateway_is_ready_to_be_served():
    made = builtin(3128)
    assert at_once(unpacking(made.spec)) == open_proxy(3128)
    assert [place.port for place in made.places] == [3128]
    assert made.findings


def test_what_is_shown_is_decompressed_as_it_is_taken():
    value = "".join(random.Random(1).choices("abcdef", k=3000))
    packed = pack_shown((("", "ConfigMap", "a", f"m{n}"), {"x": f"{n}{value}"}, 1, None, "") for n in range(2000))
    tracemalloc.start()
    readers = [shown(packed) for _ in range(20)]
    names = [[next(reader).name for _ in range(3)] for reader in readers]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert names == [["m0", "m1", "m2"]] * 20
    assert peak < 20 * OBJECTS * 3100 * 2  # a piece for each; all of it would be 120 MB
    assert [each.name for each in shown(packed)] == [f"m{n}" for n in range(2000)]
    assert json.loads(list(shown(packed))[-1].manifest) == {"x": f"1999{value}"}


def test_half_of_what_is_shown_is_no_whole():
    packed = pack_shown((("", "ConfigMap", "a", f"m{n}"), {"x": n}, 1, None, "") for n in range(2000))
    with pytest.raises((zlib.error, EOFError)):
        list(shown(packed[: len(packed) // 2]))
