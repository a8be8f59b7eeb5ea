"""The peers by their names."""

from collections.abc import Callable
from pathlib import Path

from benchmarks.contender import Contender
from benchmarks.peers.ardiq_peer import ardiq
from benchmarks.peers.arq_peer import arq
from benchmarks.peers.blitzq_peer import blitzq
from benchmarks.peers.celery_peer import celery
from benchmarks.peers.docket_peer import docket
from benchmarks.peers.dramatiq_peer import dramatiq
from benchmarks.peers.huey_peer import huey
from benchmarks.peers.mayu_peer import mayu
from benchmarks.peers.rq_peer import rq
from benchmarks.peers.saq_peer import saq
from benchmarks.peers.streaq_peer import streaq
from benchmarks.peers.taskiq_peer import taskiq
from benchmarks.peers.tasktiger_peer import tasktiger

ROSTER: dict[str, Callable[[Path], Contender]] = {
    "dramatiq": dramatiq,
    "taskiq": taskiq,
    "rq": rq,
    "celery": celery,
    "huey": huey,
    "arq": arq,
    "saq": saq,
    "streaq": streaq,
    "ardiq": ardiq,
    "blitzq": blitzq,
    "mayu": mayu,
    "docket": docket,
    "tasktiger": tasktiger,
}
