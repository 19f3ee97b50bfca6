"""Bars in an SVG: how fast each contender saves and loads, target by target."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from benchmarks.contenders.base import INTO, LOAD, SAVE
from benchmarks.rounds import Result

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "performance.svg"
_WIDTH, _LABEL, _BAR, _STEP = 760, 190, 14, 20
_SCALE_WIDTH = _WIDTH - _LABEL - 90
_COLOURS = {
    "asyncckpt": "#2563eb",
    "obstore": "#94a3b8",
    "s3fs": "#cbd5e1",
    "torch DCP": "#e2b17a",
    "safetensors": "#9ac3a0",
}
_OPERATIONS = (SAVE, LOAD, INTO)


def draw(results: Sequence[Result], state: str) -> str:
    """The SVG of one state's results; longer is faster, whiskers are the slowest and the fastest round."""
    shown = [result for result in results if result.state == state and result.operation in _OPERATIONS]
    groups = list(dict.fromkeys((result.target, result.operation) for result in shown))
    body, y = [], 34
    for target, operation in groups:
        members = [r for r in shown if (r.target, r.operation) == (target, operation)]
        fastest = max(r.megabytes_per_second.high for r in members)
        body.append(f'<text x="8" y="{y}" class="group">{target}: {operation}</text>')
        y += 8
        for result in members:
            body += _bar(result, y, fastest)
            y += _STEP
        y += 26
    return _document(body, y, f"Save and load of {state}, MB/s, median of the rounds")


def _bar(result: Result, y: int, fastest: float) -> list[str]:
    speed = result.megabytes_per_second
    scale = _SCALE_WIDTH / fastest
    length, low, high = (scale * value for value in (speed.median, speed.low, speed.high))
    middle = y + _BAR / 2
    return [
        f'<text x="{_LABEL - 8}" y="{y + _BAR - 3}" class="name">{escape(result.contender)}</text>',
        f'<rect x="{_LABEL}" y="{y}" width="{length:.1f}" height="{_BAR}" '
        f'fill="{_COLOURS.get(result.contender, "#bbbbbb")}"/>',
        f'<path d="M{_LABEL + low:.1f} {middle}H{_LABEL + high:.1f}" class="whisker"/>',
        f'<text x="{_LABEL + high + 6:.1f}" y="{y + _BAR - 3}" class="value">{speed.median:.0f}</text>',
    ]


def _document(body: Sequence[str], height: int, title: str) -> str:
    style = (
        "text{font:12px sans-serif;fill:#111827}.group{font-weight:bold}.name{text-anchor:end}"
        ".value{fill:#374151}.whisker{stroke:#111827;stroke-width:1.2;opacity:.55}"
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{style}</style>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="16">{escape(title)}</text>',
        *body,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def write_picture(results: Sequence[Result], state: str, path: Path = PICTURE) -> None:
    """Draw it into the docs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(draw(results, state))
