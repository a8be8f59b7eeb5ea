"""Hours of mixed work under random faults: R31, by the command that users run."""

import json
import os
import subprocess
import sys
import threading

from tests.reliability.scenario import Check, Findings, scenario
from tests.reliability.stage import Stage


@scenario("R31", short=None, full={"seconds": 3600, "rate": 200, "every": 10, "seed": 31})
def soaked(stage: Stage, findings: Findings, seconds: int, rate: int, every: int, seed: int) -> None:
    """`jobrunner soak` on a server of its own, random faults every few seconds.

    Loss 0; nothing twice without a fault that explains it; memory, descriptors and key count flat.
    """
    file = stage.folder / "found.json"
    words = ["--duration", f"{seconds}s", "--rate", str(rate), "--every", str(every), "--seed", str(seed)]
    process = subprocess.Popen(
        [sys.executable, "-m", "jobrunner", "soak", *words, "--report", str(file)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    err = process.stderr
    teller = threading.Thread(target=lambda: [stage.say(line.rstrip()) for line in err], daemon=True)
    teller.start()
    assert process.stdout is not None
    said = process.stdout.read()
    findings.equals("exit code", process.wait(), 0)
    if not file.exists():
        findings.equals("verdict", said, "written")
        return
    found = json.loads(file.read_text())
    for check in found["checks"]:
        if check["holds"] is not None:
            findings.checks.append(Check(check["name"], check["value"], check["bound"], check["holds"]))
    findings.note("tasks", found["totals"]["finished"])
    findings.note("begun again because of faults", found["totals"]["extra"])
    faults: dict[str, int] = {}
    for fault in found["faults"]:
        faults[fault["kind"]] = faults.get(fault["kind"], 0) + 1
    findings.note("faults", faults)


ROWS = (soaked,)
