"""Tasks at once: their results in order, and no more of them begun than are soon asked for."""

from __future__ import annotations

import threading

import pytest

from fedcrf.statistics.threads import AHEAD, default_threads, in_order


@pytest.mark.parametrize("threads", [1, 2, 5, 50])
@pytest.mark.parametrize("count", [0, 1, 7, 40])
def test_results_come_in_the_order_of_the_items(threads, count):
    assert list(in_order(lambda x: x * x, range(count), threads)) == [x * x for x in range(count)]


def test_results_do_not_pile_up_behind_a_slow_one():
    others_done, begun = threading.Event(), []

    def task(item: int) -> int:
        begun.append(item)
        if item == 0:
            assert others_done.wait(60)  # until the others that may begin are done
        elif item == 2 * AHEAD - 1:
            others_done.set()
        return item

    for result in in_order(task, range(100), 2):
        assert len(begun) <= result + 1 + 2 * AHEAD
    assert sorted(begun) == [*range(100)]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_task_that_fails_says_so_and_no_more_begin(threads):
    begun = []

    def task(item: int) -> int:
        begun.append(item)
        return 1 // (item - 2)

    with pytest.raises(ZeroDivisionError):
        list(in_order(task, range(100), threads))
    assert len(begun) <= 2 + AHEAD * threads


@pytest.mark.parametrize(("named", "threads"), [("3", 3), ("0", None), ("many", None), ("", None)])
def test_the_environment_says_how_many_threads(named, threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", named)
    monkeypatch.setattr("fedcrf.statistics.threads.available_cores", lambda: 7)
    assert default_threads() == (threads or 7)
