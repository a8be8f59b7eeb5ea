"""Reports a soak: lines of text while it runs, the verdict at its end, and its samples as an SVG.

A line is printed every ten seconds. The picture has a panel for each measure, one below the other, with the faults
above.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from jobrunner.charts import (
    ChartScale,
    ChartSeries,
    Values,
    curve,
    filled,
    halves,
    picture,
    round_step,
    rule,
    runs,
    text,
)
from jobrunner.charts.axes import PlotArea
from jobrunner.formatting import clock, duration, number, size
from jobrunner.soak.audit import SoakSample
from jobrunner.soak.checks import SoakCheck
from jobrunner.soak.faults import KINDS, InjectedFault
from jobrunner.soak.run import Soak

_EVERY_S = 10.0
_MARKS = {True: "ok ", False: "NOT", None: " - "}


class SoakReporter(Protocol):
    """Shows the progress of a soak to a person."""

    def show(self, soak: Soak) -> None:
        """Called after each poll."""

    def say(self, text: str) -> None:
        """Prints a line about an event."""


class LineReporter:
    """Prints a line every ten seconds, and at each change of phase."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self._phase = ""
        self._next_s = 0.0

    def show(self, soak: Soak) -> None:
        """Called after each poll."""
        if soak.phase != self._phase:
            self._phase = soak.phase
            self.say(f"{clock(soak.elapsed_s)}  {self._phase}")
            self._next_s = soak.elapsed_s + _EVERY_S
        elif soak.elapsed_s >= self._next_s and soak.samples:
            self._next_s = soak.elapsed_s + _EVERY_S
            self.say(line_of(soak.elapsed_s, soak.samples[-1]) if soak.phase == "works" else _left(soak))


def line_of(at_s: float, sample: SoakSample) -> str:
    """A sample as one line."""
    memory = max(sample.memory.values(), default=0)
    keys = "?" if sample.keys is None else f"{sample.keys:,}"
    return (
        f"{clock(at_s)}  {sample.finished:,} done, {sample.per_s:,.0f}/s, {sample.open:,} open, "
        f"p50 {wait_text(sample.p50_ms)}, p99 {wait_text(sample.p99_ms)}, oldest {duration(sample.oldest_s)}, "
        f"{sample.retries:,} retries, {sample.extra:,} begun again, {sum(sample.faults.values()):,} faults, "
        f"{size(memory)}, {keys} keys"
    )


def verdict_lines(checks: Sequence[SoakCheck], faults: Mapping[str, int], extra: int) -> list[str]:
    """The checks, each in a line; the faults; and the verdict."""
    lines = [f"{_MARKS[check.holds]} {check.name}: {check.value} ({check.bound})" for check in checks]
    struck = ", ".join(f"{count:,} {kind}" for kind, count in faults.items()) or "none"
    broken = sum(check.holds is False for check in checks)
    lines += ["", f"faults: {struck}; {extra:,} tasks began again because of them"]
    return [*lines, f"NOT HELD: {broken} of {len(checks)} checks" if broken else "HELD: nothing was lost"]


def wait_text(wait_ms: float | None) -> str:
    """A percentile of the waits; `-` before the first."""
    return "-" if wait_ms is None else duration(wait_ms / 1000)


def _left(soak: Soak) -> str:
    return f"{clock(soak.elapsed_s)}  {len(soak.tally.open):,} open, {soak.tally.totals.finished:,} done"


_WIDTH, _LEFT, _RIGHT = 1000, 70, 980
_PANEL, _GAP, _HEAD = 90, 34, 46
_FAULT_ROW = 13
_MIB = 1 << 20
_COLOURS = ("#2563eb", "#ea580c", "#0d9488", "#9333ea", "#64748b")
_LOOKS = tuple(f"s{nth}" for nth in range(1, len(_COLOURS) + 1))
_STYLE = """\
svg{background:#fff;font:12px system-ui,sans-serif}text{fill:#334155}.title{font-weight:600}
.tick,.key{fill:#64748b;font-size:11px}.grid{stroke:#e2e8f0}.line{fill:none!important;stroke-width:1.4;stroke-linejoin:round}
.area{opacity:.1;stroke:none!important}.fault{stroke-width:1.2}
@media(prefers-color-scheme:dark){svg{background:#0f172a}text{fill:#e2e8f0}.tick{fill:#94a3b8}.grid{stroke:#1e293b}}
""" + "".join(
    f".{look}{{fill:{colour};stroke:{colour}}}text.{look}{{stroke:none}}"
    for look, colour in zip(_LOOKS, _COLOURS, strict=True)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One measure over time: its lines, and the unit of its axis."""

    title: str
    unit: str
    lines: tuple[ChartSeries, ...]


def plotted(samples: Sequence[SoakSample], faults: Sequence[InjectedFault]) -> str:
    """The picture as SVG; without samples, its panels are empty."""
    end_s = max((one.at_s for one in samples), default=1.0) or 1.0
    step_s = round_step(end_s, 10)
    x = ChartScale(0.0, end_s, _LEFT, _RIGHT, tuple(float(at) for at in range(0, int(end_s) + 1, step_s)))
    kinds = [kind for kind in KINDS if any(fault.kind == kind for fault in faults)]
    top = _HEAD + len(kinds) * _FAULT_ROW + _GAP
    panels = _panels(samples)
    xs = [x.at(one.at_s) for one in samples]
    parts = [text("title", _LEFT, 24, "jobrunner soak", "start"), *_fault_rows(faults, kinds, x)]
    for nth, panel in enumerate(panels):
        y = top + nth * (_PANEL + _GAP)
        area = PlotArea(left=_LEFT, right=_RIGHT, top=y, floor=y + _PANEL)
        parts += _panel(panel, xs, area)
        if nth == len(panels) - 1:
            parts.append(area.x_labels(x, _clock))
    height = top + len(panels) * (_PANEL + _GAP)
    label = "jobrunner soak: samples and faults over time"
    return picture(parts, width=_WIDTH, height=height, label=label, style=_STYLE)


def _panels(samples: Sequence[SoakSample]) -> list[Panel]:
    def of(read: Callable[[SoakSample], float | None]) -> Values:
        return [read(one) for one in samples]

    def panel(title: str, unit: str, **lines: Values) -> Panel:
        found = zip(_LOOKS, lines.items(), strict=False)
        return Panel(
            title=title, unit=unit,
            lines=tuple(ChartSeries(name=name, look=look, values=values) for look, (name, values) in found),
        )  # fmt: skip

    names = sorted({name for one in samples for name in one.memory}, key=lambda name: int(name.rpartition("-")[2]))
    eldest = names[0] if names else ""
    return [
        panel("finished a second", "", tasks=of(lambda one: one.per_s)),
        panel("acknowledged and not finished", "", tasks=of(lambda one: one.open)),
        panel("due to begun", " ms", **{"99 %": of(lambda one: one.p99_ms), "50 %": of(lambda one: one.p50_ms)}),
        panel(
            "resident memory", " MiB",
            **{
                "the worker that is never killed": of(lambda one: _mib(one.memory.get(eldest))),
                "the largest other": of(lambda one: _mib(_most_but(one.memory, eldest))),
            },
        ),
        panel("its open descriptors", "", descriptors=of(lambda one: one.descriptors.get(eldest))),
        panel("memory of the server", " MiB", used=of(lambda one: _mib(one.server_memory))),
        panel("keys", "", keys=of(lambda one: one.keys)),
    ]  # fmt: skip


def _panel(panel: Panel, xs: list[float], plot: PlotArea) -> list[str]:
    found = [value for line in panel.lines for value in line.values if value is not None]
    y = halves(max(found, default=0.0), plot.floor, plot.top)
    parts = [text("title", _LEFT, plot.top - 8, panel.title, "start"), *_legend(panel, plot.top - 8)]
    parts.append(plot.y_axis(y, lambda value: f"{number(value)}{panel.unit}"))
    for line in panel.lines:
        for points in runs(xs, line.values, y):
            if len(panel.lines) == 1:
                parts.append(filled(line.look, points, plot.floor))
            parts.append(curve(line.look, points))
    return parts


def _legend(panel: Panel, y: float) -> list[str]:
    if len(panel.lines) < 2:
        return []
    parts, x = [], _RIGHT
    for line in reversed(panel.lines):
        parts.append(text(f"key {line.look}", x, y, line.name, "end"))
        x -= 7 * len(line.name) + 16
    return parts


def _fault_rows(faults: Sequence[InjectedFault], kinds: Sequence[str], x: ChartScale) -> list[str]:
    parts = []
    for row, kind in enumerate(kinds):
        y, look = _HEAD + row * _FAULT_ROW, _LOOKS[row % len(_LOOKS)]
        parts.append(text("tick", _LEFT - 8, y + 4, kind, "end"))
        parts += [
            rule(f"fault {look}", at := x.at(fault.at_s), y - 4, at, y + 5,
                 title=f"{_clock(fault.at_s)} {kind}: {fault.told}")
            for fault in faults
            if fault.kind == kind
        ]  # fmt: skip
    return parts


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _mib(size: float | None) -> float | None:
    return None if size is None else size / _MIB


def _most_but(memory: Mapping[str, int], eldest: str) -> float | None:
    return max((size for name, size in memory.items() if name != eldest), default=None)
