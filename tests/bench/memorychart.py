"""A chart of the memory of processes over time, stacked, as SVG without a script."""

from collections.abc import Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 16, 36
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#9c6b4e", "#97bbf5")
TICKS = 5
POINTS_MAX = 400


class Sample(NamedTuple):
    """bytes: of each process. seconds: since the first sample."""

    seconds: float
    bytes: tuple[int, ...]


def draw(samples: Sequence[Sample], names: Sequence[str]) -> str:
    """Return the chart. names: of the processes, as their bytes are in the samples."""
    samples = samples[:: max(1, len(samples) // POINTS_MAX)]
    seconds = max(samples[-1].seconds, 1.0)
    highest = max(sum(sample.bytes) for sample in samples)

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / seconds

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / highest

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="sans-serif" font-size="12">',
        "<title>Memory of the services' processes while a fleet is made</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for number, name in enumerate(names):
        below = [(x(s.seconds), y(sum(s.bytes[:number]))) for s in samples]
        above = [(x(s.seconds), y(sum(s.bytes[: number + 1]))) for s in samples]
        outline = " ".join(f"{left:.1f},{top:.1f}" for left, top in [*above, *reversed(below)])
        colour, middle = COLOURS[number % len(COLOURS)], TOP + 14 + 20 * (len(names) - number)
        lines += [
            f'<polygon points="{outline}" fill="{colour}" fill-opacity="0.8"/>',
            f'<rect x="{WIDTH - RIGHT + 12}" y="{middle - 10}" width="12" height="12" fill="{colour}"/>',
            f'<text x="{WIDTH - RIGHT + 30}" y="{middle}">{name}</text>',
        ]
    for tick in range(TICKS):
        value, at = highest * tick / (TICKS - 1), seconds * tick / (TICKS - 1)
        lines += [
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value / 1e6:.0f}</text>',
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
            'stroke="#00000022"/>',
            f'<text x="{x(at):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{at:.0f} s</text>',
        ]
    lines.append(f'<text x="{LEFT}" y="{TOP - 4}" text-anchor="middle">MB</text></svg>')
    return "\n".join(lines) + "\n"
