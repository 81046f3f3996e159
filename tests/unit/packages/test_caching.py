"""What the store remembers is limited by its size."""

from pvbus.controlplane.packages.caching import SizedCache
from pvbus.controlplane.packages.functions import item, yamltext


def test_the_least_used_go_first_and_the_count_of_bytes_is_right() -> None:
    cache: SizedCache[str, str] = SizedCache(100, len)
    made: list[str] = []

    def get(key: str, size: int) -> str:
        def make() -> str:
            made.append(key)
            return key * size

        return cache.get(key, make)

    for key in ("a", "b", "c"):
        get(key, 30)
    get("a", 30)
    get("d", 30)
    assert (len(cache), cache.bytes) == (3, 90)
    assert [get(key, 30)[0] for key in ("a", "c", "d")] == ["a", "c", "d"]
    assert made == ["a", "b", "c", "d"]
    get("b", 30)
    assert made[-1] == "b"


def test_what_is_larger_than_the_cache_is_given_and_not_kept() -> None:
    cache: SizedCache[str, str] = SizedCache(100, len)
    cache.get("small", lambda: "x")
    assert cache.get("large", lambda: "x" * 101) == "x" * 101
    assert (len(cache), cache.bytes) == (1, 1)


def test_no_large_text_stays_in_the_caches_of_functions() -> None:
    graphs, looks = yamltext._composed_before.cache_info(), item._looked_plain.cache_info()
    for number in range(20):
        yamltext.compose(f"a{number}: {'x' * yamltext.REMEMBERED_CHARACTERS_MAX}\n")
    assert yamltext._composed_before.cache_info() == graphs
    for number in range(20):
        assert item.Scalar(f"{number}" * 500, is_string=False).written()
    assert item._looked_plain.cache_info() == looks
