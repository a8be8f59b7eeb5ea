"""Draws a screen as lines of text that fit the terminal. Pure."""

from collections.abc import Sequence
from datetime import datetime
from itertools import zip_longest

from rich.text import Text

from jobrunner.cli.top.draw_groups import failing_section
from jobrunner.cli.top.draw_tasks import task_lines, tasks_lines
from jobrunner.cli.top.state import Screen, shown_queues
from jobrunner.cli.top.terminal import Cell, joined, line, padded, titled
from jobrunner.client.records import WorkerRecord
from jobrunner.formatting import bar, counted, curve, display_width, duration, number, percent, short_duration, size
from jobrunner.inspector.doctor.attention import urgent_checks
from jobrunner.inspector.doctor.environment import is_nearly_full
from jobrunner.inspector.live_rates import Rates
from jobrunner.inspector.live_snapshot import LiveSnapshot
from jobrunner.inspector.snapshot import QueueView
from jobrunner.inspector.task_rows import TaskRow

_WIDE = 120
_ROOMY = 20
"""Lines of a terminal that has one to spare for what is most urgent."""
_COUNTS = {"WAITING": 7, "SCHED": 5, "PEND": 5, "DEAD": 5, "IN/S": 5, "OUT/S": 5}
_HELP = """\
↑ ↓ j k PgUp PgDn g G   move
enter →                 open: the tasks of the queue (the dead by their
                        groups of errors), then one task
esc ←                   back
tab                     the next state: pending, waiting, scheduled, dead
p                       pause or resume the queue
r                       requeue the dead of the queue, of the group, or the
                        dead task (asks)
x                       cancel the task (asks)
/                       filter: queues by name, tasks by job, id or error,
                        groups by job or error
s                       sort the queues by name, open, rate, dead
?                       these keys; any key leaves them
ctrl-l                  draw all anew
q                       quit

IN/S and OUT/S: tasks per second over the last ten seconds. OUT: finished
tasks per refresh. OPEN: waiting and pending, relative to the fullest queue.
"""


def frame(screen: Screen, width: int, height: int) -> list[Text]:
    """Lines of at most `width` columns, `height` of them at most."""
    head = _head(screen, width)
    if height >= _ROOMY and screen.page == "queues" and not (screen.helping or screen.trouble):
        head += _finding(screen, width)
    body = max(height - len(head) - 1, 1)
    lines = [*head, *_body(screen, width, body)[:body]]
    lines += [Text("")] * (height - 1 - len(lines))
    return [*lines[: max(height - 1, 0)], _foot(screen, width)]


def _body(screen: Screen, width: int, height: int) -> list[Text]:
    if screen.helping:
        return [titled("KEYS", width), *(line([Cell(f"  {words}")], width) for words in _HELP.splitlines())]
    if screen.look is None:
        return [Text(""), line([Cell("  looking …", "dim")], width)]
    if screen.page == "tasks":
        return tasks_lines(screen, width, height)
    if screen.page == "task":
        return task_lines(screen, width, height)
    return _overview(screen, screen.look, width, height)


def _head(screen: Screen, width: int) -> list[Text]:
    seen = screen.look
    if seen is None:
        return [line([Cell("jobrunner top", "bold")], width), *_warnings(screen, width)]
    server = f"{seen.server.name} {seen.server.version}" if seen.server else "server"
    latency = duration(seen.latency_ms / 1000)
    return [
        padded(
            line([Cell("jobrunner ", "bold cyan"), Cell(f"{seen.url} · {seen.prefix}")], width),
            line([Cell(f"{server} · {latency} · {seen.now.astimezone():%H:%M:%S}", "dim")], width),
            width,
        ),
        padded(line(_pace(screen.total), width), line(_memory(seen), width), width, whole=True),
        padded(line(_totals(seen), width), line(_workers(seen), width), width, whole=True),
        *_warnings(screen, width),
    ]


def _pace(total: Rates) -> list[Cell]:
    a_minute = None if total.bad is None else total.bad * 60
    return [
        Cell("in ", "dim"), Cell(f"{_count(total.into)}/s", "bold"), Cell("  out ", "dim"),
        Cell(f"{_count(total.out)}/s", "bold"), Cell("  failed ", "dim"),
        Cell(f"{_count(a_minute)}/min", "bold red" if a_minute else "bold"), Cell("  "),
        Cell(curve(total.course, min(len(total.course), 24)), "green"),
    ]  # fmt: skip


def _count(per_time: float | None) -> str:
    return "-" if per_time is None else number(per_time)


def _memory(seen: LiveSnapshot) -> list[Cell]:
    if seen.server is None:
        return []
    limit = f" of {size(seen.server.maxmemory)}" if seen.server.maxmemory else ""
    return [Cell(f"memory {size(seen.server.used_memory)}{limit}", "dim")]


def _totals(seen: LiveSnapshot) -> list[Cell]:
    cells = []
    for state, style in (("waiting", "cyan"), ("scheduled", "blue"), ("pending", "green"), ("dead", "red")):
        count = seen.total(state)
        cells += [Cell(f"{state} ", "dim"), Cell(number(count), f"bold {style}" if count else "bold"), Cell("  ")]
    return cells


def _workers(seen: LiveSnapshot) -> list[Cell]:
    if not seen.workers:
        return [Cell("no worker", "bold yellow")]
    fetched = f" · {number(seen.fetched)} fetched" if seen.fetched else ""
    running = f"{number(seen.executing)} of {number(seen.slots)} running"
    return [Cell(f"{counted(len(seen.workers), 'worker')} · {running}{fetched}", "dim")]


def _warnings(screen: Screen, width: int) -> list[Text]:
    if screen.trouble:
        return [line([Cell(f"! {screen.trouble}", "bold white on red")], width)]
    server = screen.look.server if screen.look else None
    problems = []
    if server is not None and server.evicts:
        problems.append(f"the server may delete tasks to make room: maxmemory-policy is {server.maxmemory_policy}")
    if server is not None and is_nearly_full(server):
        problems.append(f"the server is nearly full: {percent(server.share_used)} of maxmemory")
    if server is not None and not server.aof_written:
        problems.append("the server cannot write its append-only file, and takes no writes")
    return [line([Cell(f"! {one}", "bold yellow")], width) for one in problems]


def _finding(screen: Screen, width: int) -> list[Text]:
    """What is most urgent, in the words of the overview."""
    seen = screen.look
    if seen is None:
        return []
    unserved = [queue for queue in seen.queues if _has_no_worker(screen, queue)]
    one = next(urgent_checks(seen.lost, unserved, seen.queues, seen.workers), None)
    return [] if one is None else [line([Cell(f"! {one.what}: {one.found}; {one.advice}", "bold yellow")], width)]


def _foot(screen: Screen, width: int) -> Text:
    if screen.question is not None:
        return line([Cell(screen.question.text, "bold yellow"), Cell("  y / n", "bold")], width)
    if screen.typing:
        return line([Cell("/", "bold"), Cell(screen.filter), Cell("▏", "blink"), Cell("  enter, esc", "dim")], width)
    if screen.message:
        return line([Cell(screen.message, "bold")], width)
    keys = {
        "queues": "↵ open  p pause  r requeue dead  / filter  s sort  ? help  q quit",
        "tasks": "↵ open  tab state  r requeue  x cancel  p pause  / filter  esc back  q quit",
        "task": "↑↓ scroll  r requeue  x cancel  esc back  ? help  q quit",
    }
    return line([Cell(_fitting(keys[screen.page], width), "dim")], width)


def _fitting(keys: str, width: int) -> str:
    """The keys that find room, of which the last, for help and the end, are always among them."""
    shown = keys.split("  ")
    while len(shown) > 2 and display_width("  ".join(shown)) > width:
        del shown[-3]
    return "  ".join(shown)


def _overview(screen: Screen, seen: LiveSnapshot, width: int, height: int) -> list[Text]:
    rows = shown_queues(screen)
    below = max(height - 1 - max(len(rows), 1), height // 2)
    failing = failing_section(screen.groups, seen.now, width)
    if width >= _WIDE:
        half = width // 2 - 1
        pairs = zip_longest(_running(seen, half), _at_work(seen, half), fillvalue=Text(""))
        sections = [[joined(one, other, width // 2 + 1) for one, other in pairs], failing]
    else:
        sections = [_running(seen, width), failing, _at_work(seen, width)]
    under = _fitted(sections, below)
    return [*_queues(screen, rows, width, height - len(under)), *under]


def _fitted(sections: Sequence[list[Text]], height: int) -> list[Text]:
    """Sections, each with its title, cut so that together they fit; each in turn gets one more line."""
    takes = [0] * len(sections)
    left = height
    while left > 0 and any(take < len(section) for take, section in zip(takes, sections, strict=True)):
        for at, section in enumerate(sections):
            if left > 0 and takes[at] < len(section):
                takes[at] += 1
                left -= 1
    return [row for take, section in zip(takes, sections, strict=True) if take > 1 for row in section[:take]]


def _queues(screen: Screen, rows: list[QueueView], width: int, height: int) -> list[Text]:
    widths = _queue_widths(rows, width)
    name, counts, load, course = widths
    titles = "".join(f" {title:>{columns}}" for title, columns in list(_COUNTS.items())[:counts])
    over_time = "OUT OVER TIME" if course > 12 else "OUT" if course else ""
    head = f"  {_named('QUEUE', screen):<{name}}{titles} {'OPEN' if load else '':<{load}} {over_time}".rstrip()
    lines = [titled(head, width, bare=True)]
    if not rows:
        note = f"no queue has {screen.queue_filter!r} in its name" if screen.queue_filter else "no queue was ever used"
        return [*lines, line([Cell(f"  {note}", "dim")], width)]
    fullest = max(row.waiting + row.pending for row in rows)
    first = _first(next((at for at, row in enumerate(rows) if row.name == screen.queue), 0), len(rows), height - 1)
    for row in rows[first : first + max(height - 1, 1)]:
        lines.append(_queue(screen, row, fullest, widths, width))
    return lines


def _queue_widths(rows: list[QueueView], width: int) -> tuple[int, int, int, int]:
    """Columns of the name, how many counts find room whole, columns of the bar and of the curve."""
    longest = max((len(row.name) for row in rows), default=0)
    name = min(max(longest, 12), max(width - 62, 12), 40)
    counts, left = 0, width - 2 - name
    for columns in _COUNTS.values():
        if left <= columns:
            break
        counts, left = counts + 1, left - columns - 1
    rest = max(left - 3, 0)
    load = min(max(rest // 3, 11), rest)
    return name, counts, load, min(rest - load, 60)


def _named(title: str, screen: Screen) -> str:
    return f"{title} /{screen.queue_filter}" if screen.queue_filter else title


def _first(at: int, count: int, height: int) -> int:
    """The first row to show, so that the row `at` is seen, about in the middle."""
    return max(min(at - height // 2, count - height), 0)


def _queue(screen: Screen, row: QueueView, fullest: int, widths: tuple[int, int, int, int], width: int) -> Text:
    name, shown, load, course = widths
    rates = screen.rates.get(row.name, Rates())
    mark = "▸ " if row.name == screen.queue else "  "
    cells = [Cell(mark, "bold cyan"), Cell(row.name, "bold" if row.name == screen.queue else "", name)]
    counts = ((row.waiting, "cyan"), (row.scheduled, "blue"), (row.pending, "green"), (row.dead, "red"))
    if row.problem:
        return line([*cells, Cell(f" {row.problem}", "red")], width)
    figures = [
        *(Cell(f" {number(count):>{7 if at == 0 else 5}}", style if count else "dim")
          for at, (count, style) in enumerate(counts)),
        *(Cell(f" {_count(one):>5}", "" if one else "dim") for one in (rates.into, rates.out)),
    ]  # fmt: skip
    cells += figures[:shown]
    if load:
        cells += [Cell(" "), _load(screen, row, fullest, load), Cell(" "), Cell(curve(rates.course, course), "green")]
    return line(cells, width, selected=row.name == screen.queue)


def _load(screen: Screen, row: QueueView, fullest: int, width: int) -> Cell:
    if row.paused:
        return Cell("‖ paused", "bold yellow", width)
    if _has_no_worker(screen, row):
        return Cell("! no worker", "bold yellow", width)
    return Cell(bar(row.waiting + row.pending, fullest, width), "cyan", width)


def _has_no_worker(screen: Screen, queue: QueueView) -> bool:
    """Whether a queue lacks a worker; no queue is said to while the workers cannot be read."""
    are_known = screen.look is None or not screen.look.problems
    return queue.is_unserved and queue.name not in screen.ends and are_known


def _running(seen: LiveSnapshot, width: int) -> list[Text]:
    job = max(min(width - 56, 40), 14)
    rows = [_running_row(seen, one, job, width) for one in seen.running]
    return [titled("PENDING  (reserved by workers)", width), *rows] if rows else []


def _running_row(seen: LiveSnapshot, one: TaskRow, job: int, width: int) -> Text:
    cells = [
        Cell(f"  {one.type or '(item)'}", "", job + 2), Cell(" "), Cell(one.queue, "cyan", 16), Cell(" "),
        Cell(_since(seen, one.started, one.when), "", 11),
        Cell(f" try {one.attempt or '–'} ", "yellow" if (one.attempt or 0) > 1 else "dim", 8), Cell(one.id, "dim"),
    ]  # fmt: skip
    return line(cells, width)


def _since(seen: LiveSnapshot, started: datetime | None, lease_ends: datetime | None) -> str:
    if started is not None:
        return f"for {short_duration((seen.now - started).total_seconds())}"
    if lease_ends is not None:
        return f"lease {short_duration((lease_ends - seen.now).total_seconds())}"
    return ""


def _at_work(seen: LiveSnapshot, width: int) -> list[Text]:
    name = max(min(width - 50, 44), 20)
    rows = [_worker_row(seen, one, name, width) for one in seen.workers]
    return [titled("WORKERS  (* leads)", width), *rows] if rows else []


def _worker_row(seen: LiveSnapshot, one: WorkerRecord, name: int, width: int) -> Text:
    cells = [
        Cell(f"{'* ' if one.id == seen.leader else '  '}{one.id}", "", name + 2),
        Cell(f" {bar(one.executing, one.slots, 8)}", "green"), Cell(f"{number(one.executing):>6} running"),
        Cell(f" {number(one.finished):>6} finished "), Cell(", ".join(one.queues), "cyan"),
    ]  # fmt: skip
    return line(cells, width)
