from benchmarks.comparison import Row
from benchmarks.goals import GOALS, Goal, judge, judge_all
from benchmarks.workloads import WORKLOADS
from tests.benchmarks.kit import results, row


def test_every_workload_has_a_goal():
    assert {goal.workload for goal in GOALS} == set(WORKLOADS)


def test_a_goal_against_a_proxy_is_judged_by_the_median_ratio():
    verdict = judge(Goal("W1", 0.7, "envoy"), results()["W1"])
    assert (verdict.word, verdict.figures) == ("met", "0.55 (0.50 to 0.60)")
    assert judge(Goal("W1", 0.5, "envoy"), results()["W1"]).word == "missed"


def test_a_goal_of_its_own_is_judged_by_the_figure():
    assert judge(Goal("M", 45, unit="MB"), [row("M", "egressproxy", 44.0, 46.0)]).word == "met"
    assert judge(Goal("M", 45, unit="MB"), [row("M", "egressproxy", 46.0)]).word == "missed"


def test_a_goal_can_be_about_what_was_seen_beside():
    goal = Goal("W5", 60, extra="added_p50_us", unit="µs")
    assert judge(goal, results()["W5"]).reached == 50.0


def test_without_one_of_the_two_figures_there_is_no_verdict():
    rows = results()["W1"]
    without_its = judge(Goal("W1", 0.7, "caddy"), rows)
    assert (without_its.word, without_its.figures) == ("no figure", "caddy was not among the peers")
    without_ours = judge(Goal("W1", 0.7, "envoy"), rows[1:])
    assert (without_ours.word, without_ours.figures) == ("no figure", "egressproxy was not among the peers")


def test_why_a_peer_has_no_figure_stands_where_the_goal_is():
    rows = [row("W1", "egressproxy", 40.0), Row("W1", "envoy", missing="12 failed connections")]
    assert judge(Goal("W1", 0.7, "envoy"), rows).figures == "envoy: 12 failed connections"


def test_only_what_was_run_is_judged():
    assert {verdict.goal.workload for verdict in judge_all(results())} == {"W1", "W5"}


def test_a_goal_reads_as_it_is_meant():
    assert str(Goal("W1", 0.7, "envoy")) == "≤ 0.70 × envoy"
    assert str(Goal("Lp", 1 / 200, "litellm")) == "≤ 1/200 × litellm"
    assert str(Goal("M", 45, unit="MB")) == "≤ 45 MB"
