"""Units and names as every report writes them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditor.report import format as fmt


@pytest.mark.parametrize(
    ("us", "written"),
    [
        (0, "0 µs"), (0.4, "0.40 µs"), (12.34, "12.3 µs"), (999.4, "999 µs"), (999.6, "1.00 ms"), (1240, "1.24 ms"),
        (60_000, "60.0 ms"), (3e6, "3.00 s"), (125e6, "125 s"), (-1500, "-1.50 ms"),
        (math.nan, "unknown"), (math.inf, "unknown"),
    ],
)  # fmt: skip
def test_durations_have_three_digits_and_the_right_unit(us, written):
    assert fmt.duration(us) == written


@pytest.mark.parametrize(
    ("nbytes", "written"),
    [(0, "0 B"), (512, "512 B"), (999.7, "1000 B"), (1000, "1.00 kB"), (1024, "1.02 kB"), (999_999, "1.00 MB"),
     (13_150_000_000, "13.2 GB"), (5e12, "5.00 TB"), (2e15, "2,000 TB"), (-2048, "-2.05 kB"), (math.nan, "unknown")],
)  # fmt: skip
def test_sizes_are_decimal(nbytes, written):
    assert fmt.size(nbytes) == written


@pytest.mark.parametrize(
    ("part", "whole", "written"),
    [(62, 100, "62 %"),
     (3.72, 100, "3.7 %"), (0.004, 100, "< 0.1 %"), (0, 5, "0 %"), (5, 5, "100 %"), (9.96, 100, "10 %"),
     (1, 0, "unknown"), (1, -3, "unknown"), (math.nan, 2, "unknown"), (1, math.inf, "unknown")],
)  # fmt: skip
def test_a_share_of_nothing_is_unknown(part, whole, written):
    assert fmt.share(part, whole) == written


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain", "plain"), ("größe 模型", "größe 模型"), ("\x1b[31mred", "\\x1b[31mred"), ("a\nb\tc", "a\\x0ab\\x09c"),
     ("\x9b2J", "\\x9b2J"), ("abc\u202edef", "abc\\u202edef"), ("a\u2028b", "a\\u2028b"), ("\u200b", "\\u200b"),
     ("\ud800", "\\ud800"), ("\U000e0041", "\\U000e0041")],
)  # fmt: skip
def test_what_steers_a_terminal_is_made_visible(text, shown):
    assert fmt.safe(text) == shown


@given(st.text(alphabet=st.characters()))
def test_safe_text_is_one_printable_encodable_line(text):
    shown = fmt.safe(text)
    assert shown.isprintable()
    shown.encode()
    assert fmt.safe(shown) == shown


@given(st.text(), st.integers(3, 40))
def test_clipped_text_keeps_its_ends(text, limit):
    shown = fmt.clip(text, limit)
    assert len(shown) <= limit
    assert shown == text or (shown[-1] == text[-1] and "…" in shown)


def test_counts_and_factors():
    assert fmt.count(12436) == "12,436"
    assert (fmt.plural(1, "site"), fmt.plural(2, "site")) == ("1 site", "2 sites")
    assert (fmt.speedup(1.094), fmt.speedup(12.5), fmt.speedup(math.inf)) == ("×1.09", "×12.5", "unknown")
