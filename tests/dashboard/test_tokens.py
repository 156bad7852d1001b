"""``fusion-audit token``, ``serve`` and ``push`` as commands: what they say and refuse."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from served import serving
from stored_runs import document, save, tables

from auditor.cli.options import nbytes
from auditor.fix_document import FixDocument
from auditor.store import Store

FusionAudit = Callable[..., Any]


def test_a_token_is_made_listed_and_revoked(fusion_audit: FusionAudit, store: Store) -> None:
    made = fusion_audit("token", "new", "build machine")
    text = made.out.strip()
    assert made.code == 0
    assert store.tokens.check(text)
    assert text not in made.err

    listed = fusion_audit("token", "list").out
    assert "build machine" in listed
    assert text.rsplit("_", 1)[1] not in listed

    assert fusion_audit("token", "revoke", "build machine").code == 0
    assert not store.tokens.check(text)
    again = fusion_audit("token", "revoke", "build machine")
    assert (again.code, again.err) == (2, "error: no token 'build machine'; see: fusion-audit token list\n")


@pytest.mark.parametrize("name", ["", " ", "a\nb", "\x1b[31m", "x" * 256])
def test_a_name_that_can_not_be_shown(name: str, fusion_audit: FusionAudit) -> None:
    refused = fusion_audit("token", "new", name)
    assert refused.code == 2
    assert "can't name a token" in refused.err
    assert "\x1b" not in refused.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["serve", "--port", "70000"], "must be at most 65535"),
        (["serve", "--max-upload", "big"], "must be a size such as 500M or 16G"),
        (["serve", "--job-time", "never"], "must be a time such as"),
        (["serve", "--host", "not an address"], "not an address:8050 can't be listened on"),
        (["push", "latest"], "the following arguments are required: URL"),
        (["push", "latest", "http://127.0.0.1:1"], "no token: put one of `fusion-audit token new` into"),
        (["token"], "the following arguments are required"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str, fusion_audit: FusionAudit) -> None:
    refused = fusion_audit(*arguments)
    assert refused.code == 2
    assert sentence in refused.err
    assert "Traceback" not in refused.err


def test_a_port_that_is_taken(fusion_audit: FusionAudit) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = fusion_audit("serve", "--port", str(taken.getsockname()[1]))
    assert refused.code == 2
    assert "can't be listened on: Address already in use; take another with --port" in refused.err


def test_sizes() -> None:
    assert [nbytes(text) for text in ("12", "1k", "1.5M", "2G", "1TB")] == [12, 1000, 1_500_000, 2 * 10**9, 10**12]


def test_a_run_is_pushed_with_its_fix_and_what_came_of_it(
    fusion_audit: FusionAudit, place: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a fixed run on a build machine, and a service elsewhere
    run = save(store)
    fix = FixDocument(run=run)
    store.save_fix(fix, (document("after"), tables()))
    with serving(place, "--no-worker") as served:
        made = fusion_audit("token", "new", "ci", "--db", place)
        monkeypatch.setenv("FUSION_AUDIT_TOKEN", made.out.strip())

        # WHEN the run is pushed, twice
        first = fusion_audit("push", run, served.url)
        second = fusion_audit("push", run, served.url)

        # THEN both runs are there with their ids, and the fix once
        assert (first.code, second.code) == (0, 0)
        assert first.err.count("is stored there") == 2
        assert second.err.count("was there already") == 2
        assert {found["id"] for found in served.client.runs()["runs"]} == {run, fix.after_run}
        assert served.client.kernels(run)["total"] == 3
        with Store.open(place) as there:
            assert [found.after_run for found in there.fixes(run)] == [fix.after_run]

        # AND it can't be fixed there, with the reason and the command to type
        reason = served.client.run(run)["rerun"]
        assert "was not recorded on this machine" in reason
        assert f"fusion-audit fix {run}" in reason

        # AND a token that was revoked pushes nothing
        fusion_audit("token", "revoke", "ci", "--db", place)
        refused = fusion_audit("push", run, served.url)
        assert refused.code == 2
        assert "this token is not valid" in refused.err
    assert tmp_path.exists()
