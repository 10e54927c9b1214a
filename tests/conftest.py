"""The order of the suite: random, but what takes longest begins first, a share on each worker."""

import os

import pytest


@pytest.hookimpl(trylast=True)  # after the order was drawn
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deal the long tests out, so that no worker is left alone with one at the end.

    pytest-xdist gives each worker an equal run of the list to begin with.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = [item for item in items if item.get_closest_marker("long")]
    rest = [item for item in items if not item.get_closest_marker("long")]
    share = -(-len(items) // workers)
    dealt: list[pytest.Item] = []
    for worker in range(workers):
        begin = long[worker::workers]
        size = min(share, len(items) - len(dealt)) - len(begin)
        dealt += [*begin, *rest[:size]]
        rest = rest[size:]
    items[:] = [*dealt, *rest]
