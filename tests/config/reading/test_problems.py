"""How problems read."""

from egressproxy.config.reading.problems import ConfigError, Problem


def test_a_problem_without_a_line_names_the_file_alone() -> None:
    assert str(Problem("conf", 0, 0, "", "", "no objects found in conf")) == "conf: no objects found in conf"


def test_a_problem_names_place_object_field_and_remedy() -> None:
    problem = Problem("a.yaml", 3, 5, "Gateway default/gw", "spec.listeners[0]", "is wrong", "make it right")
    assert str(problem) == "a.yaml:3:5: Gateway default/gw: spec.listeners[0]: is wrong (make it right)"


def test_a_problem_without_any_place_is_its_message() -> None:
    assert str(Problem("", 0, 0, "", "", "nothing is served", "add a Gateway")) == "nothing is served (add a Gateway)"


def test_an_error_lists_its_problems_one_a_line() -> None:
    error = ConfigError(Problem(name, 1, 1, "", "", "is wrong") for name in ("a", "b"))
    assert len(error.problems) == 2
    assert str(error) == "a:1:1: is wrong\nb:1:1: is wrong"
