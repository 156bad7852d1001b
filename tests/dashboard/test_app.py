"""The Dash application: its pages, its index, and what a strict policy allows."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import dash
import pytest
from flask.testing import FlaskClient

from auditor.store import Store
from dashboard import Context, create_app
from dashboard.app import PAGES
from dashboard.context import current, installed


@pytest.fixture
def client(store: Store) -> Iterator[FlaskClient]:
    with installed(Context(store=store)) as context:
        yield create_app(context).server.test_client()


@pytest.mark.usefixtures("client")
def test_every_page_has_its_address() -> None:
    paths = {
        module.rsplit(".", 1)[1]: page["path_template"] or page["path"] for module, page in dash.page_registry.items()
    }

    assert {name: paths[name] for name in PAGES if name in paths} == {
        "runs": "/",
        "overview": "/run/<run_id>",
        "finding": "/run/<run_id>/finding/<fingerprint>",
        "timeline": "/run/<run_id>/timeline",
        "kernels": "/run/<run_id>/kernels",
        "compare": "/compare",
        "rules": "/rules",
        "rule": "/rules/<rule_id>",
        "jobs": "/jobs",
        "job": "/jobs/<job_id>",
        "gate": "/gate",
        "not_found_404": "/not-found",
    }


def test_inline_scripts_are_those_that_have_a_hash(client: FlaskClient) -> None:
    page = client.get("/").get_data(as_text=True)

    inline = re.findall(r"<script(?![^>]*\bsrc=)(?![^>]*application/json)[^>]*>(.*?)</script>", page, re.DOTALL)
    hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in inline}

    assert inline
    assert hashes <= set(create_app(current()).csp_hashes())


def test_nothing_is_loaded_from_elsewhere(client: FlaskClient) -> None:
    page = client.get("/").get_data(as_text=True)

    addresses = re.findall(r"(?:src|href)=\"([^\"]*)\"", page)

    assert addresses
    assert [a for a in addresses if not a.startswith("/") or a.startswith("//")] == []
    assert "unpkg" not in page
    assert "cdn" not in page.lower()


@pytest.mark.parametrize("path", ["/run/%3Cscript%3Ealert(1)%3C/script%3E", "/?q=%3Cscript%3Ealert(1)%3C/script%3E"])
def test_an_address_is_never_written_into_the_page_as_markup(client: FlaskClient, path: str) -> None:
    page = client.get(path).get_data(as_text=True)

    assert "<script>alert(1)" not in page


def test_the_scheme_is_chosen_before_anything_is_drawn(client: FlaskClient) -> None:
    page = client.get("/").get_data(as_text=True)

    head, body = page.split("</head>")
    assert "/assets/head/scheme.js" in head
    assert "scheme.js" not in body
    with client.get("/assets/head/scheme.js") as script:
        assert script.status_code == 200


def test_one_application_serves_whatever_context_is_installed(
    store: Store, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Store.open(tmp_path_factory.mktemp("other")) as other, installed(Context(store=store)):
        first = create_app(Context(store=store))
        second = create_app(Context(store=other))

        assert first is second
        assert current().store is other


def test_a_worker_that_imports_the_package_does_not_pay_for_dash() -> None:
    code = "import sys, dashboard, dashboard.jobs.model; print('dash' in sys.modules, 'torch' in sys.modules)"

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout

    assert said.split() == ["False", "False"]


def test_pages_need_no_torch() -> None:
    """A server that shows pages must not hold half a gigabyte of a library that it never calls."""
    code = (
        "import sys; from auditor.store import Store; from dashboard import Context, create_app;"
        "create_app(Context(store=Store.open(sys.argv[1]))); print('torch' in sys.modules)"
    )
    with tempfile.TemporaryDirectory() as folder:
        said = subprocess.run(
            [sys.executable, "-c", code, f"{folder}/store"], capture_output=True, text=True, check=True, timeout=120
        ).stdout

    assert said.split() == ["False"]
