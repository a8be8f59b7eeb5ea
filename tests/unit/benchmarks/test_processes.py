"""CPU time and memory of whole sessions."""

import os
import subprocess
import sys

import pytest

from benchmarks.processes import Stat, cpu_seconds, members, memory_mb, parse_stat

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")


def test_a_name_with_blanks_and_brackets_does_not_shift_the_fields() -> None:
    line = "42 (a (strange) name) S 1 42 41 0 -1 4194304 9 8 7 6 500 300 20 10 20 0 1 0 1000 2000 300"

    assert parse_stat(line, ticks_per_s=100) == Stat(session=41, reaped_s=0.3)


@linux
def test_a_session_holds_its_leader_and_what_descends_from_it_in_groups_of_their_own() -> None:
    child = "import os, time; os.setpgrp(); print(os.getpid(), flush=True); time.sleep(60)"
    leader = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen(
        [sys.executable, "-c", leader], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    descendant = int(process.stdout.readline())

    found = members([process.pid])
    spent, memory = cpu_seconds([process.pid]), memory_mb([process.pid])

    os.kill(descendant, 9)
    process.wait()
    process.stdout.close()
    assert set(found) == {process.pid, descendant}
    assert spent is not None
    assert 0 < spent < 60
    assert memory is not None
    assert memory > 5
    assert not members([process.pid])
