"""A figure of horizontal bars with ranges, as SVG. Several panels side by side share their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from figures import Spread, number

ROW, BAR, LABELS, PANEL, GAP, TOP = 26, 14, 190, 190, 26, 66
OURS, OTHERS, INK, FAINT = "#1f77b4", "#9aa5b1", "#20262d", "#6b7680"


@dataclass(frozen=True)
class Panel:
    title: str
    # "more is better", "less is better".
    direction: str
    values: Sequence[Spread | None]


def text(x: float, y: float, content: str, size: int = 12, colour: str = INK, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(content)}</text>"


def bar(spread: Spread, scale: float, left: float, top: float, colour: str) -> list[str]:
    """A bar to the median, a line over the range, and the median in digits."""
    middle, end = top + BAR / 2, left + spread.greatest * scale
    width = spread.median * scale
    return [
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{BAR}" rx="2" fill="{colour}"/>',
        f'<path d="M{left + spread.least * scale:.1f} {middle:.1f}H{end:.1f}" stroke="{INK}" stroke-width="1.5"/>',
        text(end + 4, top + BAR - 3, number(spread.median), 11),
    ]


def picture(title: str, rows: Sequence[str], ours: Sequence[bool], panels: Sequence[Panel], foot: str) -> str:
    """The whole file. White behind it, so that it is legible on a dark page too."""
    width = LABELS + len(panels) * (PANEL + GAP)
    height = TOP + len(rows) * ROW + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" role="img" aria-label="{escape(title)}">',
        '<rect width="100%" height="100%" fill="white"/>',
        text(12, 22, title, 15),
    ]
    for row, name in enumerate(rows):
        parts.append(text(LABELS - 10, TOP + row * ROW + BAR - 2, name, 12, INK, "end"))
    for index, panel in enumerate(panels):
        left = LABELS + index * (PANEL + GAP)
        parts.append(text(left, 44, panel.title, 12))
        parts.append(text(left, 58, panel.direction, 10, FAINT))
        greatest = max((value.greatest for value in panel.values if value), default=0.0)
        # The digits behind the longest bar need their room.
        scale = (PANEL - 44) / greatest if greatest > 0 else 0.0
        for row, value in enumerate(panel.values):
            if value is not None:
                parts += bar(value, scale, left, TOP + row * ROW, OURS if ours[row] else OTHERS)
    parts.append(text(12, height - 12, foot, 10, FAINT))
    return "\n".join([*parts, "</svg>", ""])
