"""The bounded dict: its documented properties."""

from __future__ import annotations

import gc
import threading
import weakref

from hypothesis import given, strategies as st

from spyre.lru_cache import LruCache

STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60)


@given(steps=STEPS, limit=st.integers(2, 12))
def test_keeps_what_was_used_last_and_no_more(steps, limit):
    kept, used = LruCache(limit), []
    for puts, key in steps:
        if puts:
            kept.put(key, (key, "value"))
        found = kept.get(key)
        if found is not None:
            assert found == (key, "value")
            used = [*(k for k in used if k != key), key]
        else:
            assert key not in used[-(limit // 2) :]
        assert len(kept) <= limit
        assert len(list(kept.values())) == len(kept)


def test_what_goes_is_freed():
    class Thing:
        pass

    kept, things = LruCache(8), [Thing() for _ in range(100)]
    alive = [weakref.ref(t) for t in things]
    for number, thing in enumerate(things):
        kept.put(number, thing)
    del things, thing
    gc.collect()
    assert sum(ref() is not None for ref in alive) == len(kept) <= 8


def test_the_newest_value_comes_last():
    kept = LruCache(8)
    for key in range(20):
        kept.put(key, str(key))
        assert list(kept.values())[-1] == str(key)


def test_several_threads():
    kept, errors = LruCache(16), []

    def work(seed):
        for step in range(3000):
            key = (seed * step) % 37
            found = kept.get(key)
            if found is None:
                kept.put(key, key + 1)
            elif found != key + 1:
                errors.append(key)

    threads = [threading.Thread(target=work, args=(k,)) for k in (3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(kept) <= 16


def test_who_asks_is_told_of_what_goes():
    gone = []
    kept = LruCache(4, gone.append)
    for key in range(9):
        kept.put(key, str(key))
    assert sorted([*gone, *kept.values()]) == [str(key) for key in range(9)]
    kept.clear()
    assert len(gone) < 9


def test_what_is_missing_is_made_once():
    kept, made = LruCache(8), []

    def make():
        made.append("value")
        return made[-1]

    assert kept.get_or_make("key", make) is kept.get_or_make("key", make) is kept.get("key")
    assert len(made) == 1


def test_threads_that_make_the_same_get_the_first():
    kept, ready = LruCache(8), threading.Barrier(4)
    results = []

    def make():
        ready.wait()  # all four are here before one of them puts its own in
        return object()

    threads = [
        threading.Thread(target=lambda: results.append(kept.get_or_make("key", make)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(results) == {kept.get("key")}
