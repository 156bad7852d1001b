"""Lines of settings in TOML: what messages point at."""

from __future__ import annotations

import pytest

from auditor.toml_lines import Step, TomlLines

TEXT = """
[project]
name = "x"

[tool.a]
one = 1
"two" = [
  "x = 3",
]
inner = { deep = 2, other = 3 }
listed = [
  { k = 1 },
  { k = 2,
    l = 3 },
]
sub.key = 4

[[tool.a.items]]
k = 1

[[tool.a.items]]  # the second
j = 0
k = 2
[tool.a.items.more]
z = 1

[ tool . "b" ]
one = 2
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("project", "name"), 3), (("tool", "a"), 5), (("tool", "a", "one"), 6), (("tool", "a", "two"), 7),
        (("tool", "a", "inner"), 10), (("tool", "a", "inner", "deep"), 10), (("tool", "a", "listed", 0, "k"), 12),
        (("tool", "a", "listed", 1), 13), (("tool", "a", "listed", 1, "l"), 14), (("tool", "a", "sub", "key"), 16),
        (("tool", "a", "items", 0), 18), (("tool", "a", "items", 0, "k"), 19), (("tool", "a", "items", 1, "k"), 23),
        (("tool", "a", "items", 1, "more", "z"), 25), (("tool", "b", "one"), 28),
        # what isn't there is told by what is around it
        (("tool", "a", "missing"), 5), (("tool", "a", "items", 1, "missing"), 21), (("other",), None),
    ],
)  # fmt: skip
def test_every_setting_has_its_line(path: tuple[Step, ...], line: int | None) -> None:
    assert TomlLines(TEXT).of(path) == line


def test_a_file_without_tables() -> None:
    assert TomlLines("a = 1\n").of(("a",)) == 1
    assert TomlLines("").of(("a",)) is None
