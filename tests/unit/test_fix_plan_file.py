"""The file of a plan is shared by the scripts of a store: what is replaced in it, or left in it, is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditor.config import Config
from auditor.document import Document, Run
from auditor.fix.plan_file import left_alone, replaced
from auditor.fix.run import Fixing, FixOptions
from auditor.fix_document import FixDocument
from auditor.patching.plan import Plan
from auditor.store import Store

PATH = Path("fusion-plan.yaml")


def saved(store: Store, *script: str) -> str:
    return store.save(Document(run=Run(name="m", script=list(script))), {})


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("model", "script", "held"),
    [
        ("Llama", ("a.py", "--big"), ""),
        ("Bert", ("a.py", "--big"), "(Bert, a.py --big)"),
        ("Llama", ("b.py",), "(Llama, b.py)"),
        ("Llama", (), "(Llama)"),
    ],
    ids=["the same", "another model", "another script", "another store"],
)
def test_a_plan_of_something_else_is_named_when_it_is_replaced(
    store: Store, model: str, script: tuple[str, ...], held: str
) -> None:
    old = saved(store, *script) if script else "1m8aaaaaaaaa"
    Plan(run=old, model=model).save(PATH)
    fixed = store.load(saved(store, "a.py", "--big"))

    told = replaced(PATH, Plan(run=fixed.id, model="Llama"), fixed, store)

    assert told == (f"fusion-plan.yaml held the plan of run {old} {held}, and was replaced." if held else "")


@pytest.mark.usefixtures("folder")
def test_a_file_that_is_no_plan_is_told_too(store: Store) -> None:
    fixed = store.load(saved(store, "a.py"))
    assert replaced(PATH, Plan(model="Llama"), fixed, store) == ""
    PATH.write_text("notes: mine\n")
    assert replaced(PATH, Plan(model="Llama"), fixed, store) == (
        "fusion-plan.yaml held something else than a plan, and was replaced."
    )
    assert left_alone(PATH) == "No plan was written; fusion-plan.yaml was left alone."


@pytest.mark.usefixtures("folder")
def test_a_fix_stores_what_became_of_the_file(store: Store) -> None:
    # GIVEN the plan of another script
    other = saved(store, "b.py")
    Plan(run=other, model="Bert").save(PATH)
    stored = store.load(saved(store, "a.py"))
    fixing = Fixing(stored, FixOptions(), [], Config())

    # WHEN nothing is kept THEN it is left alone
    fixing.finish(store, FixDocument(run=stored.id), PATH)
    assert store.load_fix(stored.id).notes == [
        f"No plan was written; fusion-plan.yaml is of an earlier fix, of run {other} (Bert), and was left alone."
    ]

    # WHEN something is kept THEN it is replaced
    fixing.plan = Plan(run=stored.id, model="Llama")
    fixing.finish(store, FixDocument(run=stored.id), PATH)
    assert store.load_fix(stored.id).notes == [
        f"fusion-plan.yaml held the plan of run {other} (Bert, b.py), and was replaced."
    ]
    assert left_alone(Path("none.yaml")) == "No plan was written."
