from burnish.utils.lru_cache import LruCache


def test_what_was_used_last_stays():
    kept: LruCache[int] = LruCache(3)
    for key in "abc":
        kept.get(key, lambda: 0)
    assert kept.find("a") == 0
    kept.get("d", lambda: 1)
    assert kept.find("b") is None, "it was used longest ago"
    assert kept.find("a") == 0
    assert kept.get("d", lambda: 2) == 1


def test_entries_count_by_their_size_also_where_it_grows():
    kept: LruCache[list[int]] = LruCache(10, len)
    first = kept.get("a", lambda: [0] * 4)
    first += [0] * 4
    kept.get("b", lambda: [0] * 4)
    assert kept.total == 12
    kept.get("c", lambda: [0])
    assert kept.find("a") is None
    assert kept.total == 5
