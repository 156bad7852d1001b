"""What the read models keep in memory, and for how long."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import pytest

from dashboard.data.cache import ByteCache


@dataclass
class Item:
    nbytes: int


def test_what_was_made_once_is_given_again() -> None:
    cache = ByteCache(100)

    first = cache.get("a", lambda: Item(10))

    assert cache.get("a", lambda: Item(99)) is first
    assert cache.nbytes == 10


def test_the_least_recently_used_goes_when_all_no_longer_fit() -> None:
    cache = ByteCache(100)
    kept = {key: cache.get(key, lambda: Item(40)) for key in "ab"}
    cache.get("a", lambda: Item(40))  # used again

    cache.get("c", lambda: Item(40))

    assert cache.nbytes == 80
    assert cache.get("a", lambda: Item(40)) is kept["a"]
    assert cache.get("b", lambda: Item(40)) is not kept["b"]


def test_what_is_too_large_is_given_and_not_kept() -> None:
    cache = ByteCache(100)
    cache.get("small", lambda: Item(40))

    assert cache.get("large", lambda: Item(101)).nbytes == 101
    assert cache.nbytes == 40


def test_what_could_not_be_made_is_made_again() -> None:
    cache = ByteCache(100)

    def fail() -> Item:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        cache.get("a", fail)

    assert cache.get("a", lambda: Item(1)).nbytes == 1


def test_several_threads_that_ask_for_one_thing_wait_for_one_of_them() -> None:
    cache, made = ByteCache(100), []

    def make() -> Item:
        made.append(1)
        time.sleep(0.05)
        return Item(1)

    found: list[Item] = []
    threads = [threading.Thread(target=lambda: found.append(cache.get("a", make))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(made) == 1
    assert len(found) == 8
    assert all(item is found[0] for item in found)
