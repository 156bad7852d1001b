"""Waiting until a page has shown all that it asks for."""

from __future__ import annotations

from playwright.sync_api import Page

_QUIET = """() => !document.querySelector('.waiting') && !document.querySelector('._dash-loading-callback')
  && [...document.querySelectorAll('.ag-header-row-column')].every(row => row.children.length)"""
"""Nothing is awaited, and every grid has its head."""


def settled(page: Page, path: str) -> None:
    """Go to ``path`` and wait for its heading, for what it loads, and for Dash to be idle."""
    page.goto(path)
    page.wait_for_selector("h1")
    page.wait_for_function(_QUIET)
    if "/jobs" in path:  # it goes on asking
        page.wait_for_timeout(700)
    else:
        page.wait_for_load_state("networkidle")
    page.wait_for_function(_QUIET)
