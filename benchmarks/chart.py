"""The chart of the committed results: ``python -m benchmarks.chart`` draws ``benchmarks/results/<device>.svg``.

A row per script: torchopt's version and the expert's with their 95 % intervals, on a logarithmic axis, and the speed of light as
a mark. The numbers are those of the table; nothing is measured. The same results always give the same file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any
from xml.sax.saxutils import escape

from .results import DEVICES, RESULTS, conditions, read_results

LEFT, WIDTH, RIGHT, TOP, ROW = 190, 560, 20, 46, 30
STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.small { font-size: 11px; fill: #59636e; }
.grid { stroke: #d1d9e0; }
.one { stroke: #59636e; }
.torchopt { stroke: #0969da; fill: #0969da; }
.expert { stroke: #9a6700; fill: #9a6700; }
.light { stroke: #59636e; }
.interval { stroke-width: 2; fill: none; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; }
  .small { fill: #9198a1; }
  .grid { stroke: #3d444d; }
  .one { stroke: #9198a1; }
  .torchopt { stroke: #4493f8; fill: #4493f8; }
  .expert { stroke: #d29922; fill: #d29922; }
  .light { stroke: #9198a1; }
}"""


class Axis:
    """A logarithmic axis of speedups from ``low`` to ``high``."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def x(self, factor: float) -> float:
        inside = min(max(factor, self.low), self.high)
        return LEFT + WIDTH * math.log(inside / self.low) / math.log(self.high / self.low)

    def ticks(self) -> Iterator[float]:
        """0.25, 0.5, 1, 2, 4 ... as far as they are on it."""
        first, last = math.ceil(math.log2(self.low)), math.floor(math.log2(self.high))
        yield from (2.0**power for power in range(first, last + 1))


def draw(results: Mapping[str, Any]) -> str:
    """The chart as an SVG document."""
    axis = _axis(results)
    height = TOP + ROW * len(results) + 44
    body: list[str] = [*_legend(), *_grid(axis, TOP + ROW * len(results))]
    for number, (name, result) in enumerate(results.items()):
        body += _row(name, result["versions"], axis, TOP + ROW * number + ROW / 2)
    body.append(_text(10, height - 8, conditions(results), "small"))
    size = f'width="{LEFT + WIDTH + RIGHT}" height="{height}"'
    box = f'viewBox="0 0 {LEFT + WIDTH + RIGHT} {height}"'
    label = 'role="img" aria-label="Speedups of the corpus scripts"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} {label}>'
    return "\n".join([head, f"<style>\n{STYLE}\n</style>", *body, "</svg>"]) + "\n"


def _axis(results: Mapping[str, Any]) -> Axis:
    """From the smallest to the largest number or end of an interval, to the next power of two, one at least on either side of 1."""
    ends = [
        end
        for result in results.values()
        for name in (
            "torchopt",
            "expert",
            *(("light",) if _shows_light(result["versions"]) else ()),
        )
        for end in _ends(result["versions"][name])
    ]
    low = min((math.floor(math.log2(end)) for end in ends), default=-1)
    high = max((math.ceil(math.log2(end)) for end in ends), default=1)
    return Axis(2.0 ** min(low, -1), 2.0 ** max(high, 1))


def _ends(version: Mapping[str, Any]) -> tuple[float, ...]:
    found = version.get("speedup", {})
    return tuple(found[key] for key in ("factor", "low", "high") if found.get(key))


def _legend() -> Iterator[str]:
    for x, name, told in ((LEFT, "torchopt", "torchopt"), (LEFT + 110, "expert", "an expert's")):
        yield _mark(name, x + 5, 16)
        yield _text(x + 15, 20, told)
    yield f'<path class="light interval" d="M {LEFT + 225} 10 v 12"/>'
    yield _text(LEFT + 233, 20, "torchopt's, if data cost nothing")


def _grid(axis: Axis, bottom: float) -> Iterator[str]:
    for tick in axis.ticks():
        x = axis.x(tick)
        kind = "one" if tick == 1.0 else "grid"
        yield f'<path class="{kind}" d="M {x:.1f} {TOP - 6} V {bottom}"/>'
        yield _text(x, bottom + 16, f"{tick:g}x", "small", "middle")


def _row(name: str, versions: Mapping[str, Any], axis: Axis, y: float) -> Iterator[str]:
    yield _text(LEFT - 12, y + 4, name, anchor="end")
    if _shows_light(versions):
        x = axis.x(versions["light"]["speedup"]["factor"])
        yield f'<path class="light interval" d="M {x:.1f} {y - 9:.1f} v 18"/>'
    for which, offset in (("torchopt", -4.0), ("expert", 5.0)):
        found = versions[which].get("speedup")
        if found is None:
            continue
        if found["low"] is not None:
            low, high = axis.x(found["low"]), axis.x(found["high"])
            yield f'<path class="{which} interval" d="M {low:.1f} {y + offset:.1f} H {high:.1f}"/>'
        yield _mark(which, axis.x(found["factor"]), y + offset)


def _shows_light(versions: Mapping[str, Any]) -> bool:
    """Whether data cost anything that could be saved."""
    measured = "speedup" in versions.get("light", {})
    return measured and versions["original"]["data_wait_share"] > 0.0


def _mark(which: str, x: float, y: float) -> str:
    if which == "torchopt":
        return f'<circle class="torchopt" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'
    return f'<path class="expert" d="M {x:.1f} {y - 4.5:.1f} l 4.5 4.5 l -4.5 4.5 l -4.5 -4.5 z"/>'


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    known = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{known}>{escape(text)}</text>'


def main() -> None:
    for device in DEVICES:
        results = read_results(device)
        if results:
            path = RESULTS / f"{device}.svg"
            path.write_text(draw(results), encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main()
