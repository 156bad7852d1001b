"""Waiting until a page has shown all that it asks for."""

from __future__ import annotations

from playwright.sync_api import Page


def settled(page: Page, path: str) -> None:
    """Go to ``path`` and wait for its heading, for what it loads, and for Dash to be idle."""
    page.goto(path)
    page.wait_for_selector("h1")
    page.wait_for_function(
        "() => !document.querySelector('.waiting') && !document.querySelector('._dash-loading-callback')"
    )
    page.wait_for_load_state("networkidle") if "/jobs" not in path else page.wait_for_timeout(700)
