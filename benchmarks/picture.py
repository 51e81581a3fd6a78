"""A picture of a comparison: for each workload the proxies' figures as bars, ours among them, and the goal as a line.

Plain SVG without scripts or foreign fonts; it follows the reader's light or dark colours where the viewer tells them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from benchmarks.comparison import Row
from benchmarks.goals import GOALS, US, Goal
from benchmarks.workloads.base import Workload

WIDTH = 960
MARGIN = 24
GAP = 28
PANEL = (WIDTH - 2 * MARGIN - GAP) / 2
NAME = 96
VALUE = 110
BAR = PANEL - NAME - VALUE
LINE = 21
HEAD = 48
FOOT = 22
TOP = 78
#: A bar that is longer than so many times the longest of those that matter is cut, and says so.
LONGEST = 1.6

STYLE = """
svg { --page: #ffffff; --ink: #1f2328; --soft: #636c76;
  --bar: #c3cad2; --ours: #0969da; --goal: #bc4c00; --rule: #d8dee4 }
@media (prefers-color-scheme: dark) { svg { --page: #0d1117; --ink: #e6edf3; --soft: #9198a1;
  --bar: #3d444d; --ours: #4493f8; --goal: #f0883e; --rule: #2a313a } }
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328; fill: var(--ink) }
.title { font-size: 19px; font-weight: 600 }
.heading { font-size: 13px; font-weight: 600 }
.value { stroke: #ffffff; stroke: var(--page); stroke-width: 3; paint-order: stroke }
.soft { font-size: 11px; fill: #636c76; fill: var(--soft) }
.right { text-anchor: end }
.us { font-weight: 600 }
.page { fill: #ffffff; fill: var(--page) }
.bar { fill: #c3cad2; fill: var(--bar) }
.ours { fill: #0969da; fill: var(--ours) }
.cut { fill: #ffffff; fill: var(--page) }
.goal { stroke: #bc4c00; stroke: var(--goal); stroke-width: 1.5; stroke-dasharray: 4 3 }
.goaltext { font-size: 11px; fill: #bc4c00; fill: var(--goal) }
.rule { stroke: #d8dee4; stroke: var(--rule) }
"""


def draw(results: Mapping[str, Sequence[Row]], workloads: Mapping[str, Workload], date: str) -> str:
    """The picture as the text of an SVG file. A workload without any figure is left out."""
    panels = [
        (workloads[name], sorted((row for row in rows if row.rounds), key=lambda row: row.figure))
        for name, rows in results.items()
        if any(row.rounds for row in rows)
    ]
    shapes: list[str] = []
    top = float(TOP)
    for first in range(0, len(panels), 2):
        pair = panels[first : first + 2]
        for place, (workload, rows) in enumerate(pair):
            shapes += _panel(workload, rows, MARGIN + place * (PANEL + GAP), top)
        top += HEAD + FOOT + LINE * max(len(rows) for _, rows in pair)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top:.0f}" width="{WIDTH}" '
            f'height="{top:.0f}" role="img" aria-label="What a unit of work costs, by workload and proxy">',
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{WIDTH}" height="{top:.0f}" rx="6"/>',
            f'<text class="title" x="{MARGIN}" y="36">What a unit of work costs</text>',
            f'<text class="soft" x="{MARGIN}" y="56">Less is better. Medians of one run on one machine, {date}; '
            "× is the figure divided by that of egressproxy. Dashed: the goal.</text>",
            *shapes,
            "</svg>",
            "",
        ]
    )


def _panel(workload: Workload, rows: Sequence[Row], x: float, y: float) -> list[str]:
    ours = next((row for row in rows if row.proxy == US), None)
    goal = _goal_at(workload.name, rows)
    scale = BAR / _longest(rows, ours, goal)
    left = x + NAME
    foot = y + HEAD + LINE * len(rows)
    shapes = [
        f'<line class="rule" x1="{x:.1f}" x2="{x + PANEL:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>',
        f'<text x="{x:.1f}" y="{y + 19:.1f}"><tspan class="heading">{workload.name}</tspan>'
        f'<tspan class="soft" dx="8">{escape(workload.figure)}</tspan></text>',
        f'<text class="soft" x="{x:.1f}" y="{y + 35:.1f}">{escape(workload.title)}</text>',
    ]
    tops = [y + HEAD + LINE * number for number in range(len(rows))]
    for top, row in zip(tops, rows, strict=True):
        shapes += _bar(row, row is ours, left, top, scale)
    if goal is not None and goal[1] * scale <= BAR:
        at = left + goal[1] * scale
        side = " right" if at > left + BAR / 2 else ""
        shift = -5 if side else 5
        shapes += [
            f'<line class="goal" x1="{at:.1f}" x2="{at:.1f}" y1="{y + HEAD - 4:.1f}" y2="{foot + 2:.1f}"/>',
            f'<text class="goaltext{side}" x="{at + shift:.1f}" y="{foot + 9:.1f}">{escape(str(goal[0]))}</text>',
        ]
    for top, row in zip(tops, rows, strict=True):
        shapes += _words(row, ours, workload, left, top, scale)
    return shapes


def _bar(row: Row, is_us: bool, x: float, y: float, scale: float) -> list[str]:
    length = _length(row, scale)
    colour = "ours" if is_us else "bar"
    shapes = [f'<rect class="{colour}" x="{x:.1f}" y="{y + 2:.1f}" width="{length:.1f}" height="14" rx="2"/>']
    if row.figure * scale > BAR:  # two strokes across a bar that is longer than there is room
        at = x + BAR - 16
        shapes.append(f'<path class="cut" d="M{at:.1f} {y + 18:.1f}l5 -18h3l-5 18zm7 0l5 -18h3l-5 18z"/>')
    return shapes


def _words(row: Row, ours: Row | None, workload: Workload, x: float, y: float, scale: float) -> list[str]:
    """Name, figure, and the figure divided by ours."""
    emphasis = " us" if row is ours else ""
    value = f"{row.figure:,.{_digits(row.figure, workload.digits)}f}"
    words = [
        f'<text class="name{emphasis}" x="{x - NAME:.1f}" y="{y + 13:.1f}">{escape(row.proxy)}</text>',
        f'<text class="value{emphasis}" x="{x + _length(row, scale) + 6:.1f}" y="{y + 13:.1f}">{value}</text>',
    ]
    if ours is not None and row is not ours and not workload.is_relative:
        factor = row.figure / ours.figure
        digits = 2 if factor < 1 else 1 if factor < 20 else 0
        words.append(
            f'<text class="soft right" x="{x + BAR + VALUE:.1f}" y="{y + 13:.1f}">{factor:,.{digits}f} ×</text>'
        )
    return words


def _length(row: Row, scale: float) -> float:
    return max(min(row.figure * scale, BAR), 1.0)


def _digits(figure: float, digits: int) -> int:
    """Nobody reads tenths of hundreds."""
    return 0 if figure >= 100 else digits


def _longest(rows: Sequence[Row], ours: Row | None, goal: tuple[Goal, float] | None) -> float:
    """What the full length stands for: the greatest figure, or somewhat more than what is to be compared."""
    greatest = max(row.figure for row in rows)
    matter = [row.figure for row in rows if row.proxy in (US, "envoy", "haproxy", "nginx")]
    if goal is not None and ours is not None and goal[1] < 20 * ours.figure:
        matter.append(goal[1])
        greatest = max(greatest, goal[1])
    return max(min(greatest, LONGEST * max(matter or [greatest])), 1e-9)


def _goal_at(workload: str, rows: Sequence[Row]) -> tuple[Goal, float] | None:
    """The first goal of a workload that can be drawn, and where it lies in the workload's own unit."""
    figures = {row.proxy: row.figure for row in rows}
    for goal in GOALS:
        if goal.workload == workload and not goal.extra and (not goal.against or goal.against in figures):
            return goal, goal.limit * figures.get(goal.against, 1.0)
    return None
