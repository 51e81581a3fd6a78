import json
import os
import sys

import pytest

from egressproxy.filters import Exchange
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.chain import compile_chain, run
from egressproxy.filters.instances import FilterBuildError, FilterInstances
from egressproxy.filters.settings import SecretRef
from egressproxy.filters.validation import validated
from egressproxy.ir.policy import ExtensionIR
from egressproxy.kubeapi.write import staging
from egressproxy.model.secret import SecretBytes

HEAD = "from egressproxy.filters import *\nfrom pydantic import BaseModel\n"
SIMPLE = HEAD + "class F(Filter):\n    def request_headers(self, x):\n        x.note('ran', {value})\n"


def spec(folder, path="f.py", phase="request-headers", secrets=(), refs=(), **config):
    raw = json.dumps({"path": path, "config": config, "secrets": list(refs)})
    return ExtensionIR(
        "mine",
        "egressproxy.io/Python:v1",
        phase,
        config=raw,
        folder=str(folder),
        source="EgressPolicy a/b",
        secrets=secrets,
    )


def load(folder, text, **more):
    (folder / "f.py").write_text(text)
    return FilterInstances(Catalog()).place(spec(folder, **more)).filter


def problem(folder, text, **more):
    with pytest.raises(FilterBuildError) as caught:
        load(folder, text, **more)
    return str(caught.value)


def ran(instances, place):
    x = Exchange("127.0.0.1:1", "a/gw", "l", 0.0)
    run(compile_chain([place], instances.place).request_headers, x)
    return x.notes["ran"]


def test_a_file_with_one_filter_runs(tmp_path):
    (tmp_path / "f.py").write_text(SIMPLE.format(value=1))
    assert ran(FilterInstances(Catalog()), spec(tmp_path)) == 1


def test_the_config_is_validated_by_the_files_own_model(tmp_path):
    text = HEAD + (
        "class Config(BaseModel):\n    n: int\n"
        "class F(Filter):\n    def __init__(self, context): self.n = context.config.n\n"
        "    def request_headers(self, x): pass\n"
    )
    assert load(tmp_path, text, n=3).n == 3
    assert "config.n: " in problem(tmp_path, text, n="many")
    assert "no `Config` model" in problem(tmp_path, SIMPLE.format(value=1), n=3)


def test_secrets_are_given_by_reference(tmp_path):
    text = HEAD + (
        "class F(Filter):\n    def __init__(self, context): self.key = context.secrets['s/k'].reveal()\n"
        "    def request_headers(self, x): pass\n"
    )
    refs = [{"name": "s", "key": "k"}]
    place = spec(tmp_path, refs=refs, secrets=(("s/k", SecretBytes(b"v")),))
    kind = Catalog().get(place.type)
    assert kind.secret_refs(validated(kind.config_model, place.config)) == (SecretRef("s", "k"),)
    assert load(tmp_path, text, refs=refs, secrets=place.secrets).key == b"v"


def test_an_instance_lives_on_until_the_file_changes(tmp_path):
    (tmp_path / "f.py").write_text(SIMPLE.format(value=1))
    first = FilterInstances(Catalog())
    assert ran(first, spec(tmp_path)) == 1
    second = FilterInstances(Catalog(), first)
    assert second.place(spec(tmp_path)) is first.place(spec(tmp_path))
    (tmp_path / "f.py").write_text(SIMPLE.format(value=2))
    third = FilterInstances(Catalog(), second)
    assert ran(third, spec(tmp_path)) == 2
    assert ran(second, spec(tmp_path)) == 2  # asked again it reads the file again; what it placed before stays


@pytest.mark.parametrize("path", ["../f.py", "/etc/passwd", "sub/../../f.py", "link.py"])
def test_a_path_outside_of_the_manifests_folder_is_refused(tmp_path, path):
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "f.py").write_text(SIMPLE.format(value=1))
    (inside / "link.py").symlink_to(tmp_path / "f.py")
    with pytest.raises(FilterBuildError, match="stay inside the folder"):
        FilterInstances(Catalog()).place(spec(inside, path))


@pytest.mark.parametrize("path", ["f.txt", "link.py", "f.PY", "f", "f.py/", "configmap_agents_evil.yaml"])
def test_a_filter_has_a_name_that_ends_in_py_wherever_a_link_leads(tmp_path, path):
    (tmp_path / path.strip("/")).write_text(SIMPLE.format(value=1))
    (tmp_path / "link.py").unlink(missing_ok=True)
    (tmp_path / "f.txt").write_text(SIMPLE.format(value=1))
    (tmp_path / "link.py").symlink_to(tmp_path / "f.txt")
    with pytest.raises(FilterBuildError, match=r"ends in \.py"):
        FilterInstances(Catalog()).place(spec(tmp_path, path))


@pytest.mark.parametrize(
    "path", ["state/f.py", "./state/../state/f.py", "state/below/f.py", "link.py", "linked/f.py", "loaded.py"]
)
def test_nothing_is_run_of_what_was_written_through_the_api(tmp_path, path):
    """A state folder inside of the manifest's own, and every way into it."""
    state = tmp_path / "state"
    (state / "below").mkdir(parents=True)
    os.close(staging.lock(state))
    for file in (state / "f.py", state / "below" / "f.py"):
        file.write_text(SIMPLE.format(value=1))
    (tmp_path / "link.py").symlink_to(state / "f.py")
    (tmp_path / "linked").symlink_to(state)
    (tmp_path / "loaded.py").symlink_to(f"/proc/self/cwd/{os.path.relpath(state / 'f.py')}")
    with pytest.raises(FilterBuildError, match="written through the API"):
        FilterInstances(Catalog()).place(spec(tmp_path, path))


def test_a_manifest_in_a_state_folder_has_no_filters_whoever_names_the_folder(tmp_path):
    os.close(staging.lock(tmp_path))
    (tmp_path / "f.py").write_text(SIMPLE.format(value=1))
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        for folder in (
            tmp_path,
            f"/proc/self/fd/{descriptor}",
            os.path.relpath(tmp_path),
            tmp_path / ".." / tmp_path.name,
        ):
            with pytest.raises(FilterBuildError, match="written through the API"):
                FilterInstances(Catalog()).place(spec(folder))
    finally:
        os.close(descriptor)


def test_a_hard_link_to_an_object_of_the_api_is_no_program(tmp_path):
    state = tmp_path / "state"
    os.close(staging.lock(state))
    staging.stage(state / "a.yaml", staging.FIRST_LINE + "x: 1; raise SystemExit\n")
    staging.commit([(state / "a.yaml", False)])
    os.link(state / "a.yaml", tmp_path / "f.py")
    with pytest.raises(FilterBuildError, match=r"f\.py:1: SyntaxError"):
        FilterInstances(Catalog()).place(spec(tmp_path))


def test_while_code_is_held_it_is_read_and_not_run(tmp_path):
    (tmp_path / "f.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n" + SIMPLE.format(value=1))
    (tmp_path / "g.py").write_text("def f(:\n")
    instances = FilterInstances(Catalog())
    instances.hold_code()
    chain = compile_chain([spec(tmp_path)], instances.place)
    assert chain.request_headers is None
    with pytest.raises(FilterBuildError, match=r"g\.py:1: SyntaxError"):
        instances.place(spec(tmp_path, "g.py"))
    assert not (tmp_path / "ran").exists()
    assert instances.release_code() == (spec(tmp_path),)
    assert ran(instances, spec(tmp_path)) == 1
    assert (tmp_path / "ran").exists()


def test_a_manifest_without_a_folder_cannot_have_python_filters():
    with pytest.raises(FilterBuildError, match="did not come from a file"):
        FilterInstances(Catalog()).place(spec(""))


def test_problems_are_told_with_file_and_line(tmp_path):
    file = str(tmp_path / "f.py")
    assert f"{file}:2: SyntaxError" in problem(tmp_path, "x = 1\ndef f(:\n")
    assert f"{file}:2: ZeroDivisionError" in problem(tmp_path, "x = 1\ny = 1 / 0\n")
    assert f"{file}:1: ModuleNotFoundError" in problem(tmp_path, "import no_such_module\n")
    assert f"{file}:1: SystemExit" in problem(tmp_path, "raise SystemExit(1)\n")
    assert "there is no such file" in problem(tmp_path, "", path="g.py")


def test_a_config_that_is_no_model_is_refused(tmp_path):
    assert "`Config` is not a pydantic model" in problem(tmp_path, SIMPLE.format(value=1) + "Config = 3\n")


def test_an_interrupt_while_a_file_is_loaded_is_not_taken_for_its_failure(tmp_path):
    (tmp_path / "f.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        FilterInstances(Catalog()).place(spec(tmp_path))


def test_a_constructor_that_fails_does_not_show_its_secret(tmp_path):
    text = HEAD + "class F(Filter):\n    def __init__(self, c): raise ValueError(c.secrets['s/k'].reveal())\n"
    text += "    def request_headers(self, x): pass\n"
    told = problem(tmp_path, text, refs=[{"name": "s", "key": "k"}], secrets=(("s/k", SecretBytes(b"hunter2")),))
    assert "f.py:4: ValueError while F was built" in told
    assert "hunter2" not in told


def test_a_constructor_that_exits_is_a_problem_of_the_filter(tmp_path):
    text = HEAD + "class F(Filter):\n    def __init__(self, c): raise SystemExit\n"
    text += "    def request_headers(self, x): pass\n"
    assert "f.py:4: SystemExit while F was built" in problem(tmp_path, text)


def test_exactly_one_filter_class_is_expected(tmp_path):
    two = SIMPLE.format(value=1) + "class G(F): pass\n"
    assert "found: F, G" in problem(tmp_path, two)
    assert "found: none" in problem(tmp_path, HEAD)
    assert type(load(tmp_path, two + "filter_class = G\n")).__name__ == "G"
    assert "not a subclass" in problem(tmp_path, two + "filter_class = 3\n")


def test_a_filter_placed_in_a_phase_that_it_does_not_have_is_refused(tmp_path):
    told = problem(tmp_path, SIMPLE.format(value=1), phase="connect")
    assert "has no `connect` (it has `request_headers`: place it in phase request-headers, or write " in told


def test_a_filter_that_names_a_phase_without_its_method_is_refused(tmp_path):
    names = "    runs_in = frozenset((Phase.REQUEST_HEADERS, Phase.BACKEND_REQUEST))\n"
    text = SIMPLE.format(value=1) + names
    assert "F has backend-request in runs_in but has no `backend_request`" in problem(tmp_path, text)
    text += "    def backend_requst(self, x): pass\n"
    assert "has no `backend_request` (did you mean this by `backend_requst`?)" in problem(tmp_path, text)


def test_phases_may_be_named_by_their_words_and_by_nothing_else(tmp_path):
    text = SIMPLE.format(value=1) + "    def response_headers(self, x): pass\n    runs_in = {}\n"
    (tmp_path / "f.py").write_text(text.format('("request-headers", "response-headers")'))
    chain = compile_chain([spec(tmp_path)], FilterInstances(Catalog()).place)
    assert chain.request_headers is not None
    assert chain.response_headers is not None
    for wrong in ('("request_headers",)', '"request-headers"', "3"):
        assert "runs_in of class F is not a set of phases" in problem(tmp_path, text.format(wrong))


def test_a_constructor_that_rejects_is_quoted_and_what_else_it_raises_is_not(tmp_path):
    text = SIMPLE.format(value=1) + "    def __init__(self, context): raise {}\n"
    said = problem(tmp_path, text.format("Rejected('no key', remedy='add one')"))
    assert said.endswith("f.py:6: no key (add one)")
    assert "no key" not in problem(tmp_path, text.format("ValueError('no key')"))


def test_a_filter_runs_in_its_declared_phase_only_unless_it_names_more(tmp_path):
    text = SIMPLE.format(value=1) + "    def response_headers(self, x): pass\n"
    (tmp_path / "f.py").write_text(text)
    chain = compile_chain([spec(tmp_path)], FilterInstances(Catalog()).place)
    assert chain.request_headers is not None
    assert chain.response_headers is None


def test_the_private_module_is_replaced_and_not_piled_up(tmp_path):
    for value in range(3):
        load(tmp_path, SIMPLE.format(value=value))
        before = sum(name.startswith("_egressproxy_filter_") for name in sys.modules)
    problem(tmp_path, "1 / 0")
    assert sum(name.startswith("_egressproxy_filter_") for name in sys.modules) == before
