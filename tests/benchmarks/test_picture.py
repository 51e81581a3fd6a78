from xml.etree import ElementTree

from benchmarks.picture import BAR, WIDTH, draw
from benchmarks.workloads import WORKLOADS
from tests.benchmarks.kit import results, row

NAMESPACE = "{http://www.w3.org/2000/svg}"


def picture(found):
    root = ElementTree.fromstring(draw(found, WORKLOADS, "2026-01-01"))
    return root, [each for each in root.iter(f"{NAMESPACE}rect") if each.get("class") in ("bar", "ours")]


def test_one_bar_for_each_proxy_with_a_figure_and_ours_apart():
    _, bars = picture(results())
    assert [bar.get("class") for bar in bars] == ["ours", "bar", "bar", "ours", "bar"]


def test_bars_are_as_long_as_their_figures_and_none_leaves_its_place():
    _, bars = picture(results())
    ours, envoy, mitmproxy = (float(bar.get("width")) for bar in bars[:3])
    assert abs(ours / envoy - 22 / 40) < 0.01
    assert mitmproxy <= BAR
    assert all(float(bar.get("x")) + float(bar.get("width")) < WIDTH for bar in bars)


def test_a_bar_that_is_cut_says_so():
    root, _ = picture(results())
    assert len([each for each in root.iter(f"{NAMESPACE}path") if each.get("class") == "cut"]) == 1


def test_the_goal_lies_where_it_belongs():
    root, bars = picture(results())
    line = next(each for each in root.iter(f"{NAMESPACE}line") if each.get("class") == "goal")
    left, envoy = float(bars[1].get("x")), float(bars[1].get("width"))
    assert abs((float(line.get("x1")) - left) / envoy - 0.7) < 0.01


def test_everything_is_inside_the_page():
    root, bars = picture({name: [row(name, "egressproxy", 1.0), row(name, "envoy", 2.0)] for name in WORKLOADS})
    height = float(root.get("height"))
    assert len(bars) == 2 * len(WORKLOADS)
    assert all(float(each.get("y") or 0) < height for each in root.iter())


def test_workloads_without_figures_are_left_out():
    root, bars = picture({"W1": [row("W1", "egressproxy", missing="broken")], "M": [row("M", "egressproxy", 40.0)]})
    assert len(bars) == 1
    assert "W1" not in "".join(root.itertext())
