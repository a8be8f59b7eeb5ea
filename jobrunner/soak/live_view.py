"""The progress of a soak as a table in the terminal that is redrawn after each poll. Needs rich."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from jobrunner.formatting import clock, duration, size
from jobrunner.soak.audit import SoakSample
from jobrunner.soak.faults import KINDS
from jobrunner.soak.report import wait_text
from jobrunner.soak.run import Soak

_HEIGHTS = "▁▂▃▄▅▆▇█"
_LAST = 3
_LABEL, _VALUE = 22, 12


class SoakView:
    """Shows a soak in a terminal; created by `opened`."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, soak: Soak) -> None:
        """Called after each poll."""
        self._live.update(drawn(soak, self._live.console.width), refresh=True)

    def say(self, text: str) -> None:
        """Prints a line about an event; it stays above the table."""
        self._live.console.print(text, highlight=False, markup=False)


@contextmanager
def opened() -> Iterator[SoakView]:
    """Opens the view on stderr, as stdout is for the verdict."""
    console = Console(stderr=True)
    with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False) as live:
        yield SoakView(live)


def drawn(soak: Soak, width: int) -> RenderableType:
    """The table, at most `width` columns wide."""
    wish, totals = soak.wish, soak.tally.totals
    done = min(soak.elapsed_s / wish.length_s, 1.0) if soak.phase == "works" else float(soak.phase != "starts")
    at = clock(soak.elapsed_s) + (f" of {clock(wish.length_s)}" if soak.phase == "works" else "")
    head = Text.assemble(
        ("jobrunner soak ", "bold cyan"), (f"{soak.phase} ", "bold"),
        f"{at}  ", (_bar(done, 20), "cyan"), (f"  seed {wish.seed}", "dim"),
        no_wrap=True, overflow="ellipsis",
    )  # fmt: skip
    bad = totals.extra_unexcused + totals.ended_again_unexcused + totals.unknown + len(soak.processes.lost)
    state = Text("nothing is wrong so far", "green") if not bad else Text(_first_wrong(soak), "bold red")
    state.no_wrap, state.overflow = True, "ellipsis"
    return Group(head, _figures(soak.samples, width), _faults(soak, width), state)


def _figures(samples: Sequence[SoakSample], width: int) -> Table:
    last = samples[-1] if samples else SoakSample(at_s=0)
    elder = min(last.memory, key=lambda name: int(name.rpartition("-")[2]), default="")
    table = Table.grid(padding=(0, 1))
    table.add_column(width=_LABEL, style="dim", no_wrap=True)
    table.add_column(width=_VALUE, justify="right", style="bold", no_wrap=True)
    table.add_column(no_wrap=True, style="green")
    room = max(width - _LABEL - _VALUE - 4, 8)
    rows: list[tuple[str, str, Sequence[float | None]]] = [
        ("finished", f"{last.finished:,}", ()),
        ("finished a second", f"{last.per_s:,.0f}", [one.per_s for one in samples]),
        ("acknowledged, open", f"{last.open:,}", [one.open for one in samples]),
        ("in flight", _shown(last.in_flight), [one.in_flight for one in samples]),
        ("oldest open", duration(last.oldest_s), [one.oldest_s for one in samples]),
        ("wait, half", wait_text(last.p50_ms), [one.p50_ms for one in samples]),
        ("wait, 99 %", wait_text(last.p99_ms), [one.p99_ms for one in samples]),
        ("retries", f"{last.retries:,}", ()),
        ("dead, as they must be", _shown(last.dead), ()),
        ("begun again", f"{last.extra:,}", [one.extra for one in samples]),
        ("memory, elder worker", _size(last.memory.get(elder)), [one.memory.get(elder) for one in samples]),
        ("its descriptors", _shown(last.descriptors.get(elder)), [one.descriptors.get(elder) for one in samples]),
        ("memory of the server", _size(last.server_memory), [one.server_memory for one in samples]),
        ("keys", _shown(last.keys), [one.keys for one in samples]),
    ]
    for name, value, course in rows:
        table.add_row(name, value, _curve(course, room))
    return table


def _faults(soak: Soak, width: int) -> RenderableType:
    counts = soak.striker.counts
    counted = "  ".join(f"{kind} {counts[kind]:,}" for kind in KINDS if counts[kind]) or "none yet"
    lines = [Text.assemble(("faults  ", "dim"), counted)]
    for one in soak.faults[-_LAST:]:
        line = Text(f"  {clock(one.at_s)} {one.kind}: {one.told}", "yellow", no_wrap=True, overflow="ellipsis")
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return Group(*lines)


def _first_wrong(soak: Soak) -> str:
    return next(iter([*soak.processes.lost, *soak.tally.totals.wrong]), "something is wrong")


def _curve(values: Sequence[float | None], width: int) -> str:
    """A row of bars, at most `width` columns wide; each shows the largest of its values."""
    if not values:
        return ""
    step = max(-(-len(values) // width), 1)
    pieces = [values[at : at + step] for at in range(0, len(values), step)]
    most = [max((one for one in piece if one is not None), default=0) for piece in pieces]
    top = max(most) or 1
    return "".join(_HEIGHTS[min(int(one / top * len(_HEIGHTS)), len(_HEIGHTS) - 1)] for one in most)


def _bar(share: float, width: int) -> str:
    full = round(share * width)
    return "█" * full + "░" * (width - full)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"


def _size(octets: float | None) -> str:
    return "-" if octets is None else size(octets)
