"""Gates: which are read, when they close and open, and what a broken one does."""

import pytest

from jobrunner.errors import InvalidOption
from jobrunner.worker.gates import CpuShare, Gate, Gates, ShareGate, gate_of, memory_share


def closing():
    return "it rains"


NOT_CALLABLE = 5


@pytest.mark.parametrize("given", ["memory=90%", "cpu=0.5%", "memory=100%", f"{__name__}:closing", closing])
def test_gates_are_read(given):
    assert callable(gate_of(given).check)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("memory=90", "write memory=90%"),
        ("memory=0%", "from above 0 to 100"),
        ("memory=101%", "from above 0 to 100"),
        ("disk=90%", "write memory=90%"),
        ("app", "module:function"),
        (":closing", "module:function"),
        ("no_such_module:x", "cannot be imported"),
        (f"{__name__}:nothing", "cannot be imported"),
        (f"{__name__}:NOT_CALLABLE", "is 5; name a function"),
        (90, "give 'memory=90%'"),
    ],
)
def test_what_is_no_gate_is_refused(given, message):
    with pytest.raises(InvalidOption, match=message):
        gate_of(given)


def test_a_share_closes_at_its_limit_and_opens_five_points_below():
    shares = iter([0.0, 0.89, 0.9, 0.86, 0.85, 0.849, 0.89, 0.95])
    gate = ShareGate("memory", 0.9, lambda: next(shares))
    assert [gate() for _ in range(7)] == [None, "90% in use", "86% in use", "85% in use", None, None, "95% in use"]


def test_changes_are_told_once_and_the_first_closed_gate_is_named():
    said, changes = {"a": None, "b": None}, []
    gates = Gates([Gate("a", lambda: said["a"]), Gate("b", lambda: said["b"])], changes.append)
    gates.step()
    said["b"] = "full"
    gates.step()
    gates.step()
    said["a"] = "busy\nline"
    gates.step()
    said["a"] = said["b"] = ""
    gates.step()
    assert changes == ["b: full", "a: busy line", ""]


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (lambda: 1 / 0, "g: ZeroDivisionError: division by zero"),
        (lambda: True, "g: it returned True and not a reason, or None"),
        (lambda: False, "g: it returned False and not a reason, or None"),
        (lambda: "x" * 1000, "g: " + "x" * 197),
    ],
)
def test_a_gate_that_cannot_say_is_closed_and_says_why(check, reason):
    changes = []
    Gates([Gate("g", check)], changes.append).step()
    assert changes == [reason]


def test_memory_is_that_of_the_machine_or_of_the_container(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 600 kB\nHuge: 0\n")
    assert memory_share(tmp_path) == pytest.approx(0.4)
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.stat").write_text("anon 5\ninactive_file 100\n")
    (group / "memory.current").write_text("900\n")
    (group / "memory.max").write_text("max\n")
    assert memory_share(tmp_path) == pytest.approx(0.4)
    (group / "memory.max").write_text("1000\n")
    assert memory_share(tmp_path) == pytest.approx(0.8)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/cgroup").write_text("0::/docker/of-the-host\n")
    assert memory_share(tmp_path) == pytest.approx(0.8)
    with pytest.raises(InvalidOption, match="/proc/meminfo"):
        memory_share(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("line", "folder", "files"),
    [
        ("0::/system.slice/jobs.service", "system.slice/jobs.service",
         ("memory.max", "memory.current", "inactive_file")),
        ("0::/system.slice/jobs.service", "system.slice", ("memory.max", "memory.current", "inactive_file")),
        ("0::/\n4:memory:/jobs", "memory/jobs",
         ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
        ("0::/\n4:memory:/docker/of-the-host", "memory",
         ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ],
    ids=["unit", "slice", "version 1", "container of version 1"],
)  # fmt: skip
def test_memory_is_that_of_the_units_limit_too(tmp_path, line, folder, files):
    """MemoryMax= of systemd, and control groups of version 1."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 600 kB\n")
    (tmp_path / "proc/self/cgroup").write_text(f"{line}\n")
    (tmp_path / "sys/fs/cgroup/system.slice/jobs.service").mkdir(parents=True)
    group = tmp_path / "sys/fs/cgroup" / folder
    group.mkdir(parents=True, exist_ok=True)
    limit, usage, cache = files
    (group / "memory.stat").write_text(f"anon 5\n{cache} 100\n")
    (group / usage).write_text("900\n")
    (group / limit).write_text("1000\n")

    assert memory_share(tmp_path) == pytest.approx(0.8)


def test_cpu_is_what_was_used_since_the_last_check(tmp_path):
    (tmp_path / "proc").mkdir()
    stat = tmp_path / "proc/stat"
    share = CpuShare(tmp_path)
    for line, expected in [
        ("cpu 100 0 100 700 100 0 0 0 0 0", 0.0), ("cpu 130 0 120 740 110 0 0 0 0 0", 0.5),
        ("cpu 130 0 120 740 110 0 0 0 0 0", 0.0), ("cpu 140 0 120 740 110 0 0 0 0 0", 1.0),
    ]:  # fmt: skip
        stat.write_text(f"{line}\ncpu0 1 2 3\n")
        assert share() == pytest.approx(expected)
    stat.write_text("odd\n")
    with pytest.raises(InvalidOption, match="/proc/stat"):
        share()
