"""Groups of tests that run in one process: a test that asks for one is named for it, which is how xdist tells them."""

import pytest


@pytest.mark.xdist_group("groups of tests")
def test_the_group_of_a_test_reaches_xdist(request: pytest.FixtureRequest) -> None:
    if not hasattr(request.config, "workerinput"):
        pytest.skip("without xdist, there is one process")
    assert request.node.nodeid.endswith("@groups of tests")
