"""Marked-up text from any text, and drawings that keep their lettering at every width.

A drawing is an SVG without a viewBox: places across are shares of its width, places down are
pixels, so letters and marks stay their size on a phone and on paper. Nothing is styled in place:
a page with these holds a strict content security policy.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

Attribute = str | int | float


def escaped(text: object) -> str:
    """Text that stays text in HTML, in attributes too; what cannot be shown is spelled out."""
    return html.escape("".join(_shown(c) for c in str(text)))


def _shown(c: str) -> str:
    if c in "\n\t" or c == " ":
        return c
    code = ord(c)
    if code < 0x20:
        return chr(0x2400 + code)
    # direction marks and other invisible signs could make a page read otherwise than it is
    return c if c.isprintable() else f"\\u{code:04x}"


def tag(name: str, inner: str | Iterable[str] = "", **attributes: Attribute) -> str:
    """An element around markup; `cls` is its class, `_` in a name a hyphen, values are escaped."""
    body = inner if isinstance(inner, str) else "".join(inner)
    words = "".join(
        f' {"class" if key == "cls" else key.replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value != ""
    )
    return f"<{name}{words}>{body}</{name}>"


def across(share: float) -> str:
    """A place or a width as a share of the drawing's, in per cent."""
    return f"{100.0 * share:.2f}%"


def drawing(inner: Iterable[str], height: float, label: str, cls: str = "plot") -> str:
    """The drawing as an image whose content the label tells in words."""
    return tag(
        "svg", inner, cls=cls, width="100%", height=f"{height:g}", role="img", aria_label=label
    )


def box(
    x: float, y: float, width: float, height: float, cls: str, title: str = "", least: float = 0.0
) -> str:
    """A rectangle; `least` is the smallest share it is drawn with."""
    return tag(
        "rect",
        tag("title", escaped(title)) if title else "",
        x=across(x),
        y=f"{y:.1f}",
        width=across(max(width, least)),
        height=f"{height:.1f}",
        cls=cls,
    )


def dot(x: float, y: float, radius: float, cls: str, title: str = "") -> str:
    """A circle."""
    inner = tag("title", escaped(title)) if title else ""
    return tag("circle", inner, cx=across(x), cy=f"{y:.1f}", r=f"{radius:.1f}", cls=cls)


def line(x1: float, y1: float, x2: float, y2: float, cls: str) -> str:
    """A straight line."""
    return tag("line", x1=across(x1), y1=f"{y1:.1f}", x2=across(x2), y2=f"{y2:.1f}", cls=cls)


def letters(x: float, y: float, text: str, cls: str = "tick", dx: float = 0.0) -> str:
    """Text; where it stands at its place is its class's to say."""
    return tag("text", escaped(text), x=across(x), y=f"{y:.1f}", dx=f"{dx:g}", cls=cls)


def curve(points: Sequence[tuple[float, float]], height: float, cls: str) -> str:
    """A line through (share, pixels from the top), its strokes as thick at every width."""
    places = " ".join(f"{1000 * x:.1f},{y:.1f}" for x, y in points)
    path = tag("polyline", points=places, vector_effect="non-scaling-stroke", cls=cls)
    return tag(
        "svg",
        path,
        width="100%",
        height=f"{height:g}",
        viewBox=f"0 0 1000 {height:g}",
        preserveAspectRatio="none",
        overflow="visible",
    )


def nice_steps(most: float, about: int = 5, *, least: float = 0.0) -> list[float]:
    """Round numbers from 0 to `most`, some `about` of them, steps of `least` or more."""
    if most <= 0:
        return [0.0]
    rough = max(most / about, least)
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    return [i * step for i in range(int(most / step + 1e-9) + 1)]
