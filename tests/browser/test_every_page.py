"""Every page, in both schemes, and narrow: no error, no foreign request, accessible, nothing out of the window."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from browsed import Seen, Site
from settled import settled

PAGES = (
    "runs", "overview", "finding", "timeline", "kernels", "compare", "rules", "rule", "jobs", "job", "gate",
    "not found",
)  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(
    "seen", [("light", 1280), ("dark", 1280), ("light", 390)], indirect=True, ids=lambda p: f"{p[0]}-{p[1]}"
)
def test_the_page(seen: Seen, site: Site, name: str, request: pytest.FixtureRequest) -> None:
    page, scheme = seen.page, request.node.callspec.params["seen"][0]

    settled(page, site.url + site.pages[name])

    assert page.locator("html").get_attribute("data-scheme") == scheme
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert violations(Axe().run(page).response) == []
    assert seen.wrong == []


def violations(found: dict[str, Any]) -> list[str]:
    """Each violation with the first element that has it."""
    return [f"{v['id']} × {len(v['nodes'])}: {v['nodes'][0]['html'][:200]}" for v in found["violations"]]
