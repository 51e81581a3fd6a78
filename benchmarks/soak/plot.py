"""A run as a picture: memory, connections and lag over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.soak.subject import Sample

WIDTH, HEIGHT, LEFT, TOP = 720, 110, 110, 24
ROWS: tuple[tuple[str, Callable[[Sample], float]], ...] = (
    ("RSS, MiB", lambda sample: sample.resident_kib / 1024),
    ("descriptors", lambda sample: sample.descriptors),
    ("connections", lambda sample: sample.downstream + sample.upstream + sample.tunnels),
    ("tasks", lambda sample: sample.tasks),
    ("lag p99, ms", lambda sample: sample.lag_p99_ms),
)


def plot(samples: Sequence[Sample]) -> str:
    """SVG, one strip for each figure, each from 0 to its greatest value."""
    height = len(ROWS) * (HEIGHT + TOP) + TOP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + LEFT + 20}" height="{height}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    span = max((sample.at_s for sample in samples), default=0.0) or 1.0
    for number, (name, read) in enumerate(ROWS):
        bottom = TOP + number * (HEIGHT + TOP) + HEIGHT
        most = max((read(sample) for sample in samples), default=0.0) or 1.0
        points = " ".join(
            f"{LEFT + sample.at_s / span * WIDTH:.1f},{bottom - read(sample) / most * HEIGHT:.1f}" for sample in samples
        )
        parts.append(f'<text x="4" y="{bottom - HEIGHT / 2:.0f}">{name}</text>')
        parts.append(f'<text x="{LEFT - 6}" y="{bottom - HEIGHT + 10}" text-anchor="end">{most:,.1f}</text>')
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{bottom}" y2="{bottom}" stroke="#999"/>')
        parts.append(f'<polyline fill="none" stroke="#2166ac" points="{points}"/>')
    parts.append(f'<text x="{LEFT + WIDTH}" y="{height - 6}" text-anchor="end">{span:,.0f} s</text></svg>')
    return "".join(parts) + "\n"
