"""Rules of a run in several processes: the id of a test ends with its group, by which xdist selects the process, and no
test waits for another process."""

import pytest
import pytest_rerunfailures


@pytest.mark.xdist_group("groups of tests")
def test_the_group_of_a_test_reaches_xdist(request: pytest.FixtureRequest) -> None:
    if not hasattr(request.config, "workerinput"):
        pytest.skip("without xdist, there is one process")
    assert request.node.nodeid.endswith("@groups of tests")


def test_no_test_asks_the_first_process_how_often_it_failed(request: pytest.FixtureRequest) -> None:
    """Ten thousand tests that each wait for an acknowledgement, 40 ms at worst, take a fifth of the time of a run."""
    assert type(vars(request.config)["failures_db"]) in (
        pytest_rerunfailures.StatusDB,
        pytest_rerunfailures.ServerStatusDB,  # this is the first process
    )
