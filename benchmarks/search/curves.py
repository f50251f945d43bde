"""Curves of a replay as SVG: the best share so far after each trial, a line for each sampler, and exact random search."""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, MARGIN_LEFT, RIGHT, TOP, BOTTOM = 780, 360, 52, 210, 34, 40
_COLOURS = ("#0b6e4f", "#c0392b", "#2c6fbb", "#8e44ad", "#d08700", "#555555", "#16a2b8", "#9c6644")
_RANDOM = "random (exact)"
_UNSAFE = re.compile(r"[^\w.-]+")
"""Characters allowed in a file's name."""


def write(result: dict[str, Any], folder: Path) -> list[Path]:
    """One file for each table of a report, `search-TABLE.svg`."""
    folder.mkdir(parents=True, exist_ok=True)
    elements = []
    for table in result["tables"]:
        curves = {name: item["curve"] for name, item in table["samplers"].items()}
        path = folder / f"search-{_UNSAFE.sub('-', table['table'])}.svg"
        path.write_text(picture(table["table"], curves | {_RANDOM: table["random_exact_curve"]}))
        elements.append(path)
    return elements


def picture(title: str, curves: dict[str, Sequence[float]]) -> str:
    """The drawing of one table."""
    most = max(len(curve) for curve in curves.values())
    shapes = [*_axes(most), *_lines(curves, most)]
    name = escape(f"{title}: best share so far, by trials (mean of the seeds)")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" font-family="sans-serif" font-size="12"><title>{name}</title>'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/><text x="{MARGIN_LEFT}" y="18" font-size="14">{name}</text>'
        + "".join(shapes)
        + "</svg>\n"
    )


def _x(trial: int, most: int) -> float:
    return MARGIN_LEFT + (WIDTH - MARGIN_LEFT - RIGHT) * (trial - 1) / max(1, most - 1)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share


def _axes(most: int) -> list[str]:
    shapes = []
    for share in (0.0, 0.25, 0.5, 0.75, 0.97, 1.0):
        dash = ' stroke-dasharray="4 3"' if share == 0.97 else ""
        y = _y(share)
        shapes.append(f'<path d="M{MARGIN_LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"{dash}/>')
        shapes.append(
            f'<text x="{MARGIN_LEFT - 6}" y="{y + (12 if share == 0.97 else 4):.1f}" text-anchor="end">{share:g}</text>'
        )
    for trial in (1, *range(5, most + 1, 5)):
        shapes.append(f'<text x="{_x(trial, most):.1f}" y="{HEIGHT - 22}" text-anchor="middle">{trial}</text>')
    shapes.append(f'<text x="{(MARGIN_LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">trials</text>')
    return shapes


def _lines(curves: dict[str, Sequence[float]], most: int) -> list[str]:
    shapes = []
    for number, (name, curve) in enumerate(curves.items()):
        colour, dash = _COLOURS[number % len(_COLOURS)], ' stroke-dasharray="6 4"' if name == _RANDOM else ""
        points = " ".join(f"{_x(trial, most):.1f},{_y(share):.1f}" for trial, share in enumerate(curve, start=1))
        shapes.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        at, x = TOP + 18 * number, WIDTH - RIGHT + 14
        shapes.append(f'<path d="M{x} {at + 6}h22" stroke="{colour}" stroke-width="2"{dash}/>')
        shapes.append(f'<text x="{x + 28}" y="{at + 10}">{escape(name)}</text>')
    return shapes
