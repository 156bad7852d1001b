"""Suggested source changes: they are Python, they say which rule, and they rewrite only what they know."""

from __future__ import annotations

import ast
import inspect
import os
from pathlib import Path

import pytest

from auditor.api import rules_of
from auditor.config import Config
from auditor.document import Document, Finding, Run, Site, SourceInfo
from auditor.fix.spelling import rewritten
from auditor.fix.suggest import CALLS, NOTHING, Suggestions, is_users, suggestions
from auditor.graph.model import Op, OpGraph, Source
from auditor.graph.tables import to_tables
from auditor.store import Store

SOURCE = '''"""A model."""

from __future__ import annotations

import torch
import torch.nn.functional as F


class MLP(torch.nn.Module):
    def forward(self, x):
        h = F.silu(self.gate(x)) * self.up(x)
        return self.down(h)


class Norm(torch.nn.Module):
    def forward(self, x):
        x32 = x.float()
        variance = (
            x32.pow(2)
            .mean(-1, keepdim=True)
        )
        return self.weight * (x32 * torch.rsqrt(variance + self.eps)).to(x.dtype)
'''
GATE, NORM = 11, 19
RECORDED = "2199-01-01T00:00:00+00:00"
LONG_AGO = "2001-01-01T00:00:00+00:00"


def changed(
    store: Store, file: Path, spots: dict[str, tuple[str, list[int]]], recorded: str = RECORDED
) -> list[tuple[str, str]]:
    """Path and new text of what is suggested for findings of rules at lines of ``file``."""
    return [(str(change.path), change.new) for change in suggested(store, file, spots, recorded).changes]


def suggested(
    store: Store, file: Path, spots: dict[str, tuple[str, list[int]]], recorded: str = RECORDED
) -> Suggestions:
    graph, findings = OpGraph(), []
    for rule, (replacement, lines) in spots.items():
        ops = []
        for line in lines:
            op = Op(0, "aten.mul", (), (), source=Source(str(file), line, "forward"))
            graph.add(op)
            ops.append(op.index)
        home = SourceInfo(file=str(file), line=lines[0], function="forward")
        place = Site(ops=ops, source=home)
        findings.append(
            Finding(rule=rule, name=rule, family="f", sites=1, kernels=len(lines) + 4, dtype="f32", places=[place],
                    source=home, fingerprint=rule, replacement=replacement)
        )  # fmt: skip
    document = Document(run=Run(name="m", created=recorded), findings=findings)
    stored = store.load(store.save(document, to_tables(graph)))
    return suggestions(stored, rules_of(Config()), Config())


@pytest.fixture
def model(folder: Path) -> Path:
    file = folder / "model.py"
    file.write_text(SOURCE, encoding="utf-8")
    return file


def test_a_plain_line_is_rewritten_and_a_long_site_gets_a_comment(store: Store, model: Path) -> None:
    ((path, new),) = changed(store, model, {"FUS206": ("act_mul", [GATE]), "FUS201": ("rms_norm", [NORM, NORM + 3])})

    assert path == str(model)
    ast.parse(new)
    assert "import torch.nn.functional as F\nfrom fused_replacements import silu_mul\n\n" in new
    assert (
        "        # fusion-audit: FUS206 unfused-gated-activation: 5 kernels that could be one\n"
        "        h = silu_mul(self.gate(x), self.up(x))\n"
    ) in new
    assert (
        "        # fusion-audit: FUS201 unfused-rms-norm: 6 kernels that could be one\n"
        "        #     from fused_replacements import rms_norm\n"
        "        #     y = rms_norm(x, weight, eps)\n"
        "        variance = (\n"
    ) in new


def test_the_diff_applies_to_the_file(store: Store, model: Path) -> None:
    from auditor.fix.suggest import Change

    ((_, new),) = changed(store, model, {"FUS206": ("act_mul", [GATE])})
    diff = Change(model, SOURCE, new).diff
    assert diff.startswith("--- a/model.py\n+++ b/model.py\n@@ ")
    assert "-        h = F.silu(self.gate(x)) * self.up(x)\n" in diff


def test_what_was_suggested_before_is_not_suggested_again(store: Store, model: Path) -> None:
    ((_, new),) = changed(store, model, {"FUS201": ("rms_norm", [NORM])})
    model.write_text(new, encoding="utf-8")
    found = suggested(store, model, {"FUS201": ("rms_norm", [NORM + 3])})
    assert found == Suggestions(
        [], ["model.py: what would be suggested is in the file already, from an earlier time."]
    )  # fmt: skip
    # AND so it is where the file is newer than the run, as after --write
    assert suggested(store, model, {"FUS201": ("rms_norm", [NORM])}, recorded=LONG_AGO) == found


def test_a_second_place_of_a_rule_is_suggested_though_the_first_is_marked(store: Store, model: Path) -> None:
    two = SOURCE + "\n\nclass Other(MLP):\n    def forward(self, x):\n        return F.silu(x) * x\n"
    model.write_text(two, encoding="utf-8")
    ((_, new),) = changed(store, model, {"FUS206": ("act_mul", [GATE])})
    model.write_text(new, encoding="utf-8")
    line = new.splitlines().index("        return F.silu(x) * x") + 1
    ((_, newer),) = changed(store, model, {"FUS206": ("act_mul", [line])})
    assert newer.count("fusion-audit: FUS206 ") == 2


def test_a_finding_that_is_in_no_file_of_the_users_is_told_apart(store: Store, folder: Path) -> None:
    found = suggested(store, folder / "site-packages" / "model.py", {"FUS206": ("act_mul", [1])})
    assert found == Suggestions([], [NOTHING])


def test_line_ends_stay_as_they_are(store: Store, model: Path) -> None:
    model.write_bytes(SOURCE.replace("\n", "\r\n").encode())
    ((_, new),) = changed(store, model, {"FUS206": ("act_mul", [GATE])})
    assert new.count("\n") == new.count("\r\n") > SOURCE.count("\n")


def test_a_rule_without_a_call_shows_what_its_docs_say(store: Store, model: Path) -> None:
    ((_, new),) = changed(store, model, {"FUS301": ("", [GATE])})
    assert "#     h = torch._addmm_activation(bias, x, weight.t())" in new
    ast.parse(new)


def test_a_file_that_changed_since_the_run_is_left_alone(store: Store, model: Path) -> None:
    found = suggested(store, model, {"FUS206": ("act_mul", [GATE])}, recorded=LONG_AGO)
    assert found == Suggestions(
        [], ["model.py has changed since the run, and lines may have moved: run it again for suggestions."]
    )  # fmt: skip


@pytest.mark.parametrize("content", [b"\xff\xfe\x00bad", b"def broken(:\n", None], ids=["bytes", "syntax", "missing"])
def test_a_file_that_is_no_python_is_left_alone(store: Store, model: Path, content: bytes | None) -> None:
    model.unlink() if content is None else model.write_bytes(content)
    found = suggested(store, model, {"FUS206": ("act_mul", [1])})
    assert found.changes == []
    assert found.notes[0].startswith("model.py can't be read (")


def test_installed_packages_are_not_the_users() -> None:
    assert is_users("/home/me/project/model.py")
    assert not is_users("/opt/venv/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py")
    assert not is_users(os.__file__)
    assert not is_users("<string>")


@pytest.mark.parametrize(
    ("line", "replacement", "expected"),
    [
        ("y = F.silu(a) * b", "act_mul", "y = silu_mul(a, b)"),
        ("y = b * torch.nn.functional.silu(a + 1)", "act_mul", "y = silu_mul(a + 1, b)"),
        ("y = F.gelu(a, approximate='tanh') * b", "act_mul", "y = gelu_mul(a, b, 'tanh')"),
        ("ü = F.gelu(ä) * b  # kept", "act_mul", "ü = gelu_mul(ä, b)  # kept"),
        ("return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + e))", "rms_norm", "return rms_norm(x, w, e)"),
        ("return w * (x * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + e))", "rms_norm", None),
        ("y = F.silu(a) * b + F.silu(c) * d", "act_mul", None),
        ("y = F.silu(a, inplace=True) * b", "act_mul", None),
        ("y = F.silu(a) + b", "act_mul", None),
        ("y = silu * b", "act_mul", None),
        ("y = F.silu(a) * b", "rope", None),
    ],
)
def test_spellings(line: str, replacement: str, expected: str | None) -> None:
    source = f"def f():\n    {line}\n" if line.startswith("return") else f"{line}\n"
    tree = ast.parse(source)
    statement = tree.body[0].body[0] if isinstance(tree.body[0], ast.FunctionDef) else tree.body[0]
    found = rewritten(source.splitlines(keepends=True), statement, replacement, "f32")
    assert (found and found[0].strip()) == expected


def test_low_precision_norms_are_not_rewritten_as_their_casts_would_move() -> None:
    source = "y = w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + e))\n"
    assert rewritten([source], ast.parse(source).body[0], "rms_norm", "bf16") is None


def test_every_call_fits_the_signature_of_its_replacement() -> None:
    import fused_replacements

    for name, text in CALLS.items():
        call = ast.parse(text).body[0].value  # type: ignore[attr-defined]
        assert call.func.id == name
        arguments = [None for argument in call.args if not isinstance(argument, ast.Starred)]
        keywords = {keyword.arg: None for keyword in call.keywords}
        inspect.signature(getattr(fused_replacements, name)).bind_partial(*arguments, **keywords)
