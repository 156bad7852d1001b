"""An address's path names what is shown; its query only says how."""

from __future__ import annotations

from typing import Any

import pytest

from dashboard import addresses
from dashboard.addresses import from_path


def layout(run_id: str = "latest", fingerprint: str = "", site: str = "0", **_: str) -> tuple[str, str, str]:
    return run_id, fingerprint, site


@pytest.mark.parametrize(
    ("path", "given", "shown"),
    [
        ("/run/good/finding/abc", {"run_id": "good", "fingerprint": "abc"}, ("good", "abc", "0")),
        ("/run/good/finding/abc", {"run_id": "evil", "fingerprint": ["x", "y"], "site": "2"}, ("good", "abc", "2")),
        ("/run/a%2Fb/finding/abc/", {"run_id": "a/b", "fingerprint": "abc", "site": ["1", "3"]}, ("a/b", "abc", "3")),
        ("", {"run_id": "good", "fingerprint": "abc", "site": {"no": "text"}}, ("good", "abc", "0")),
    ],
    ids=["path", "query of the same name", "twice", "outside of a page"],
)
def test_the_path_wins(path: str, given: dict[str, Any], shown: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_path", lambda: path)
    assert from_path(layout, "/run/<run_id>/finding/<fingerprint>")(**given) == shown


def test_a_page_without_variables_takes_its_query() -> None:
    assert from_path(layout, "/runs")(run_id=["a", "b"]) == ("b", "", "0")
