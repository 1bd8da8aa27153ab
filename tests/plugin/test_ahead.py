"""Items that one thread at a time prepares for several that take them."""

from __future__ import annotations

import threading
import time

import pytest

from tvm_blislike.side_by_side import Ahead, side_by_side


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 3, 20])
def test_each_item_is_prepared_and_taken_once(threads: int, count: int) -> None:
    lock = threading.Lock()

    def prepare(item: int) -> int:
        # Would wait for itself if another thread prepared at the same time.
        assert lock.acquire(blocking=False)
        time.sleep(1e-3)
        lock.release()
        return item * item

    ahead = Ahead(prepare, range(count))
    found = side_by_side(lambda _: ahead.take(), range(count), threads)
    assert sorted(found) == [item * item for item in range(count)]


def test_one_is_ready_while_the_next_is_prepared() -> None:
    may_go_on = threading.Event()
    ready = threading.Event()

    def prepare(item: int) -> int:
        if item == 1:
            ready.set()
            assert may_go_on.wait(10)
        return item

    ahead, taken = Ahead(prepare, range(3)), []
    other = threading.Thread(target=lambda: taken.append(ahead.take()))
    other.start()
    assert ready.wait(10)
    assert ahead.take() == 0  # though the other thread is not done
    may_go_on.set()
    other.join(10)
    assert taken == [1] and ahead.take() == 2


def test_what_fails_leaves_nobody_waiting() -> None:
    def prepare(item: int) -> int:
        time.sleep(1e-3)
        if item == 3:
            raise ValueError("three")
        return item

    ahead = Ahead(prepare, range(50))
    with pytest.raises(ValueError, match="three"):
        side_by_side(lambda _: ahead.take(), range(50), 3)
    with pytest.raises(ValueError, match="three"):
        ahead.take()
