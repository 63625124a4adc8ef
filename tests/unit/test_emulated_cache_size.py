# SPDX-License-Identifier: Apache-2.0
"""A row cache is bound by its table and by the memory that is left."""

from __future__ import annotations

import pytest

from slacktier.errors import ConfigError
from slacktier_emulated.cache_size import CacheWish, available_memory_bytes, check_caches


def test_cache_that_fits_table_and_memory_is_taken() -> None:
    check_caches([CacheWish(1, 100, 264, 100), CacheWish(14, 50, 264, 100)], available_bytes=150 * 264)


def test_cache_with_more_rows_than_its_table_names_both() -> None:
    with pytest.raises(ConfigError, match=r"layer 1: cache of 101 rows \(26664 bytes\), the table has 100 rows"):
        check_caches([CacheWish(1, 101, 264, 100)])


def test_caches_that_do_not_fit_memory_together_name_rows_and_bytes() -> None:
    wishes = [CacheWish(1, 100, 264, 100), CacheWish(14, 50, 264, 100)]
    with pytest.raises(ConfigError) as caught:
        check_caches(wishes, available_bytes=150 * 264 - 1)
    assert str(caught.value) == (
        "cache of 100 rows for layer 1, 50 rows for layer 14: needs 39600 bytes of memory, 39599 are available"
    )


def test_available_memory_is_what_the_kernel_says() -> None:
    assert 1 << 20 < available_memory_bytes() < 1 << 50
