from __future__ import annotations

import pytest
from dfc_runtime.patterns import matches, selected


@pytest.mark.parametrize(
    ("pattern", "qualifier", "table", "expected"),
    [
        ("shop.orders", "shop", "orders", True),
        ("shop.orders", "shop", "Orders", False),
        ("shop.orders", "other", "orders", False),
        ("orders", "any", "orders", True),
        ("orders", None, "orders", True),
        ("shop.*", "shop", "x", True),
        ("shop.%", "shop", "x", True),
        ("shop.ord*", "shop", "orders", True),
        ("shop.*_log", "shop", "a_log", True),
        ("*.orders", "x", "orders", True),
        ("order_items", "x", "orderXitems", False),
        ("order_%", "x", "orderXitems", True),
        ("order_%", "x", "order", False),
        ("shop.a.b", "shop", "a.b", True),
        ("a+b", "x", "a+b", True),
        ("a+b", "x", "aab", False),
        ("*", "x", "y", True),
    ],
)
def test_matches(pattern: str, qualifier: str | None, table: str, expected: bool) -> None:
    assert matches(pattern, qualifier, table) is expected


def test_exclude_wins_and_an_empty_include_takes_all() -> None:
    assert selected("d", "t")
    assert selected("d", "t", ["t"])
    assert not selected("d", "t", ["u"])
    assert not selected("d", "t", ["*"], ["d.t"])
