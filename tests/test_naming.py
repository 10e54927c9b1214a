"""How ranks are named wherever people read of them."""

import pytest

from puffrun.naming import name_ranks

RANKS = [
    ([5], "rank 5"),
    ([6, 7], "ranks 6, 7"),
    ([7, 6, 0, 1, 2, 3, 4], "ranks 0-4, 6, 7"),
    ([0, 2, 3], "ranks 0, 2, 3"),
    (range(64), "ranks 0-63"),
    ([1, 1, 1], "rank 1"),
    ([0, 1, 2, 8, 10, 11, 12], "ranks 0-2, 8, 10-12"),
    (range(0, 16, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14"),
    (range(0, 40, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14, …"),
]


@pytest.mark.parametrize(("ranks", "text"), RANKS)
def test_ranks_are_named_as_people_do(ranks, text):
    assert name_ranks(ranks) == text
