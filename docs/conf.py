"""How Sphinx builds the site: `make docs`, offline, every warning an error."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ.setdefault("FUSED_REPLACEMENTS_CPU", "reference")  # nothing is compiled for a page

from sphinx.application import Sphinx
from sphinx.ext.napoleon import GoogleDocstring

import auditor

project = "Fusion Auditor"
author = "the Fusion Auditor authors"
copyright = author
version = release = auditor.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build", "reference_pages", "**/__pycache__"]
root_doc = "index"
nitpicky = True
# Other projects' inventories lie on the network, which a build does not use; documents and settings have pages of their
# own, which are no Python.
_ELSEWHERE = "torch pd pandas Path pathlib collections types typing abc auditor.document Config"
nitpick_ignore_regex = [("py:.*", rf"({'|'.join(map(re.escape, _ELSEWHERE.split()))})\b.*")]

myst_heading_anchors = 3
myst_links_external_new_tab = False
suppress_warnings: list[str] = []

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"Fusion Auditor {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}


def _list_replacements(app: Sphinx, page: str, source: list[str]) -> None:  # noqa: ARG001
    """The pages of the replacements under their index, which is Markdown for GitHub too and lists them in tables."""
    if page == "replacements/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n[!R]*\n```\n"


def _sections(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:  # noqa: ARG001
    """``Args:`` and ``Raises:`` as lists. Not napoleon as an extension: it takes "Kernels in findings: …" for types."""
    if what in ("function", "method", "class", "exception"):
        lines[:] = GoogleDocstring(lines).lines()


def setup(app: Sphinx) -> None:
    """What Sphinx calls."""
    app.connect("autodoc-process-docstring", _sections)
    app.connect("source-read", _list_replacements)
