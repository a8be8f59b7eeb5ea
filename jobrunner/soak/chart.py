"""The samples of a soak as one SVG: a panel for each figure, one below the other, and the faults above them all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from jobrunner.charts.scale import Values, area, nice_top, number, path, runs
from jobrunner.soak.fault_injector import InjectedFault
from jobrunner.soak.fault_plan import KINDS
from jobrunner.soak.samples import SoakSample

_WIDTH, _LEFT, _RIGHT = 1000, 70, 20
_PANEL, _GAP, _HEAD = 90, 34, 46
_FAULT_ROW = 13
_MIB = 1 << 20
_COLOURS = ("#2563eb", "#ea580c", "#0d9488", "#9333ea", "#64748b")
_STYLE = """\
svg{background:#fff;font:12px system-ui,sans-serif}text{fill:#334155}.title{font-weight:600}
.small{fill:#64748b;font-size:11px}.grid{stroke:#e2e8f0}.line{fill:none;stroke-width:1.4;stroke-linejoin:round}.area{opacity:.1}.fault{stroke-width:1.2}
@media(prefers-color-scheme:dark){svg{background:#0f172a}text{fill:#e2e8f0}.small{fill:#94a3b8}.grid{stroke:#1e293b}}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One figure over time: its lines by name, and the unit of its axis."""

    title: str
    unit: str
    lines: dict[str, Values]


def plotted(samples: Sequence[SoakSample], faults: Sequence[InjectedFault]) -> str:
    """The whole picture; of no samples an empty one."""
    end_s = max((one.at_s for one in samples), default=1.0) or 1.0
    kinds = [kind for kind in KINDS if any(fault.kind == kind for fault in faults)]
    top = _HEAD + len(kinds) * _FAULT_ROW + _GAP
    panels = _panels(samples)
    height = top + len(panels) * (_PANEL + _GAP)
    xs = [_x(one.at_s, end_s) for one in samples]
    parts = [_text(_LEFT, 24, "jobrunner soak", "title"), *_fault_rows(faults, kinds, end_s)]
    for nth, panel in enumerate(panels):
        parts += _panel(panel, xs, top + nth * (_PANEL + _GAP), end_s, is_last=nth == len(panels) - 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">'
        f"<style>{_STYLE}</style>{''.join(parts)}</svg>\n"
    )


def _panels(samples: Sequence[SoakSample]) -> list[Panel]:
    def of(read: Callable[[SoakSample], float | None]) -> Values:
        return [read(one) for one in samples]

    names = sorted({name for one in samples for name in one.memory}, key=lambda name: int(name.rpartition("-")[2]))
    elder = names[0] if names else ""
    return [
        Panel(title="finished a second", unit="", lines={"tasks/s": of(lambda one: one.per_s)}),
        Panel(title="acknowledged and not finished", unit="", lines={"tasks": of(lambda one: one.open)}),
        Panel(
            title="due to begun", unit=" ms",
            lines={"99 %": of(lambda one: one.p99_ms), "50 %": of(lambda one: one.p50_ms)},
        ),
        Panel(
            title="resident memory", unit=" MiB",
            lines={
                "the worker that is never killed": of(lambda one: _mib(one.memory.get(elder))),
                "the largest other": of(lambda one: _mib(_most_but(one.memory, elder))),
            },
        ),
        Panel(title="its open descriptors", unit="", lines={"descriptors": of(lambda one: one.descriptors.get(elder))}),
        Panel(title="memory of the server", unit=" MiB", lines={"used": of(lambda one: _mib(one.server_memory))}),
        Panel(title="keys", unit="", lines={"keys below the prefix": of(lambda one: one.keys)}),
    ]  # fmt: skip


def _panel(panel: Panel, xs: list[float], y: float, end_s: float, *, is_last: bool) -> list[str]:
    found = [value for values in panel.lines.values() for value in values if value is not None]
    top = nice_top(max(found, default=0.0))
    parts = [_text(_LEFT, y - 8, panel.title, "title"), *_legend(panel, y - 8)]
    for share in (0.0, 0.5, 1.0):
        at = y + _PANEL * (1 - share)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(_text(_LEFT - 6, at + 4, f"{number(top * share)}{panel.unit}", "small", anchor="end"))
    for colour, values in zip(_COLOURS, panel.lines.values(), strict=False):
        for points in runs(xs, values, top, _PANEL):
            moved = [(x, at + y) for x, at in points]
            if len(panel.lines) == 1:
                parts.append(f'<path class="area" fill="{colour}" d="{area(moved, y + _PANEL)}"/>')
            parts.append(f'<path class="line" stroke="{colour}" d="{path(moved)}"/>')
    if is_last:
        parts += [_text(_x(at, end_s), y + _PANEL + 18, _clock(at), "small", anchor="middle") for at in _marks(end_s)]
    return parts


def _legend(panel: Panel, y: float) -> list[str]:
    if len(panel.lines) < 2:
        return []
    parts, x = [], _WIDTH - _RIGHT
    for colour, name in reversed(list(zip(_COLOURS, panel.lines, strict=False))):
        said = f'x="{x}" y="{y}" text-anchor="end" style="fill:{colour}"'
        parts.append(f'<text class="small" {said}>{escape(name)}</text>')
        x -= 7 * len(name) + 16
    return parts


def _fault_rows(faults: Sequence[InjectedFault], kinds: Sequence[str], end_s: float) -> list[str]:
    parts = []
    for row, kind in enumerate(kinds):
        y = _HEAD + row * _FAULT_ROW
        colour = _COLOURS[row % len(_COLOURS)]
        parts.append(_text(_LEFT - 6, y + 4, kind, "small", anchor="end"))
        for fault in faults:
            if fault.kind == kind:
                x = _x(min(fault.at_s, end_s), end_s)
                tip = escape(f"{_clock(fault.at_s)} {kind}: {fault.told}")
                parts.append(
                    f'<line class="fault" stroke="{colour}" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 4}" y2="{y + 5}">'
                    f"<title>{tip}</title></line>"
                )
    return parts


def _marks(end_s: float) -> list[float]:
    apart = next((one for one in (10, 30, 60, 300, 600, 1800, 3600, 7200) if end_s / one <= 10), 14_400)
    return [at * apart for at in range(int(end_s / apart) + 1)]


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _x(at_s: float, end_s: float) -> float:
    return _LEFT + at_s / end_s * (_WIDTH - _LEFT - _RIGHT)


def _text(x: float, y: float, words: str, look: str, *, anchor: str = "start") -> str:
    return f'<text class="{look}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _mib(size: float | None) -> float | None:
    return None if size is None else size / _MIB


def _most_but(memory: Mapping[str, int], elder: str) -> float | None:
    return max((size for name, size in memory.items() if name != elder), default=None)
