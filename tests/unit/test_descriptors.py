"""Descriptors that a process misses when a job closed them."""

import os
import tempfile

from jobrunner.worker.process_guard import Canary, lost_descriptors, unwatch_descriptor, watch_descriptor


def test_what_is_closed_or_another_file_is_missed() -> None:
    assert lost_descriptors() == []
    with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as other:
        known = os.dup(file.fileno())
        watch_descriptor(known, "a file")
        try:
            assert lost_descriptors() == []
            os.dup2(other.fileno(), known)
            assert lost_descriptors() == ["a file"]
            os.close(known)
            assert lost_descriptors() == ["a file"]
        finally:
            unwatch_descriptor(known)
    assert lost_descriptors() == []


def test_a_canary_is_missed_until_it_is_closed_by_its_owner() -> None:
    canary, another = Canary("all"), Canary("all")
    another.close()
    os.close(canary._descriptor)
    assert lost_descriptors() == ["all"]
    with tempfile.TemporaryFile() as file:
        taken = file.fileno() == canary._descriptor
        assert lost_descriptors() == ["all"]
        canary.close()
        assert not taken or os.fstat(file.fileno()), "the file that has the number now stays open"
    assert lost_descriptors() == []
