"""Reports of a fix: text, JSON and Markdown of one document."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from fix_factory import fixed, hostile, norm, nothing_kept

from auditor.errors import AuditError
from auditor.fix_document import NOT_SELECTED, FixDocument, RatioInfo
from auditor.report import render_fix
from auditor.report.fix_facts import groups, headline, layerless, verdict

TEXT = """\
fusion fix of Llama (run 1m8aaaaaaaaa)
  script        examples/llama.py --prompt 'two words'
  step          training
  sites         3 kept · 1 rolled back · 1 refused
  verified      yes, on captured inputs, other values
  kernels       92 → 31 (66 % fewer) · unfused 64 → 2 (97 % fewer)
  saved         9.00 ms of a step predicted, 10.0 ms measured
  Amdahl cap    ×1.29, if every finding cost nothing
  compiles      1 graph traced
  audit after   fusion-audit show 1m8bbbbbbbbb

kept: 3 sites
  RULE    MODULE         SITES  TIER  REPLACEMENT  PROVIDER  CALLS  ERROR / EAGER'S    GAIN
  FUS201  layers.*.norm  3      2     rms_norm     library   3      2.0e-07 / 3.0e-07  ×2.10 (1.90 to 2.50)

rolled back: 1 site
  RULE    MODULE        SITES  TIER  REPLACEMENT  PROVIDER  CALLS  ERROR / EAGER'S  GAIN
  FUS206  layers.*.mlp  1      2     act_mul      library   1      –                ×0.97 (0.95 to 0.99)
      not faster: 0.97 × (0.95 to 0.99)

refused: 1 site
  RULE    MODULE              SITES  TIER  REPLACEMENT  PROVIDER  CALLS  ERROR / EAGER'S  GAIN
  FUS501  layers.*.attention  1      –     –            –         –      –                –
      the weights do not lie one behind the other

one step, taken in turns, 31 rounds
  VERSION        STEP     AGAINST EAGER (95 %)  FIRST CALL  EXTRA MEMORY
  eager          60.0 ms  –                     –           12.0 MB
  patched        50.0 ms  ×1.20 (1.18 to 1.22)  3.00 s      8.00 MB
  torch.compile  55.0 ms  ×1.09 (1.05 to 1.12)  –           9.00 MB

time of the fused sites, each measured alone: predicted by the audit and measured
  RULE    SITES  BEFORE   AFTER, PREDICTED  AFTER, MEASURED  ERROR
  FUS201  3      1.20 ms  540 µs            600 µs           -10 %

what else would help
  do  Give the optimizer `fused=True`.
      for its step is 40 kernels

  note  Patched by a plan: of its 3 sites 3 were applied and 3 were called.

how to use fusion-plan.yaml
  fusion-audit run --patch fusion-plan.yaml examples/llama.py --prompt 'two words'
  auditor.patch(model, 'fusion-plan.yaml')  # after: import auditor

3 sites kept: the step takes 17 % less time, ×1.20 (1.18 to 1.22).
"""


def test_the_text_report() -> None:
    assert render_fix(fixed(), "text") == TEXT


def test_nothing_kept_is_said_honestly_with_the_cap() -> None:
    assert verdict(nothing_kept()) == (
        "Not worth it here: nothing was kept of 1 site. If every finding of the audit cost nothing at all, the step "
        "would be at most ×1.08 as fast (7.4 % less time)."
    )


def test_sites_that_were_kept_without_a_win_are_not_praised() -> None:
    fix = fixed()
    fix.timing.patched_vs_eager = RatioInfo(ratio=0.8, low=0.75, high=0.85)
    assert verdict(fix) == "3 sites kept, as asked; the step takes 25 % more time, ×0.80 (0.75 to 0.85)."


def test_a_dry_run_promises_nothing_and_shows_no_figures() -> None:
    fix = FixDocument(sites=[norm(0, error=0.0, eager_error=0.0, gain=RatioInfo())], dry=True)
    text = render_fix(fix, "text")
    assert "to be tried: 1 site" in text
    assert "rms_norm     library   –      –                –\n" in text
    assert "| `rms_norm` | `library` | – | – | – |" in render_fix(fix, "markdown")
    assert verdict(fix) == "1 site would be tried, and nothing was measured; nothing was changed."


def test_a_written_diff_says_what_was_changed() -> None:
    fix = FixDocument(sites=[norm(0)], dry=True, diff="+x\n", changed=["a.py", "b.py"])
    assert verdict(fix) == "1 site would be tried, and nothing was measured; changed: a.py, b.py."
    assert "source change, written\n+x\n" in render_fix(fix, "text")


CAP = " The audit sees nothing to gain."


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"sites": []}, "Nothing was kept: no site was found in the model as it runs." + CAP),
        (
            {"sites": [norm(0, state="refused")], "limit": 0},
            "Nothing was kept, as the limit is 0 sites; 1 site found." + CAP,
        ),
        (
            {"sites": [norm(0, state="refused")], "failure": "A graph could not be looked at: KeyError: 'x'."},
            "Nothing was kept, which says nothing of the model. A graph could not be looked at: KeyError: 'x'.",
        ),
        (
            {"sites": [norm(0, state="rolled_back", reason="the patched script failed: exit code 1")]},
            "Nothing was kept, which says nothing of the model. The patched script failed: exit code 1.",
        ),
        (
            {"sites": [norm(0, state="refused")]},
            "Nothing was kept of 1 site: no replacement can take the place of any, for the reasons above." + CAP,
        ),
        (
            {"sites": [norm(0, state="failed"), norm(1, state="refused")]},
            "Nothing was kept of 2 sites: what was tried is not right here, for the reasons above." + CAP,
        ),
        (
            {"sites": [norm(0, state="refused"), norm(1, state="refused", reason=NOT_SELECTED)]},
            "Nothing was kept of 1 site: no replacement can take the place of any, for the reasons above." + CAP,
        ),
        ({"sites": [norm(0, state="rolled_back")]}, "Not worth it here: nothing was kept of 1 site." + CAP),
    ],
    ids=["no site", "limit", "failure", "script", "refused", "failed", "not selected", "slower"],
)
def test_nothing_kept_names_the_true_reason(facts: dict[str, Any], sentence: str) -> None:
    assert verdict(FixDocument(**facts)) == sentence


def test_sites_that_were_not_asked_for_were_not_refused() -> None:
    fix = FixDocument(sites=[norm(0, state="kept"), *(norm(n, state="refused", reason=NOT_SELECTED) for n in (1, 2))])
    assert ("sites", "1 kept · 2 not selected") in [(fact.label, fact.value) for fact in headline(fix)]


@pytest.mark.parametrize(
    ("module", "pattern"),
    [("layers.12.norm", "layers.*.norm"), ("3", "*"), ("a.0.1.b2", "a.*.*.b2"), ("conv1.w", "conv1.w"), ("", "")],
)
def test_layers_differ_by_number_only(module: str, pattern: str) -> None:
    assert layerless(module) == pattern


def test_groups_keep_the_order_of_their_first_site_and_the_span_of_gains() -> None:
    sites = [norm(1), norm(0, module="head"), norm(2, gain=RatioInfo(ratio=3.0, low=2.9, high=3.1))]
    found = groups(sites, "kept")
    assert [(g.where, len(g.sites)) for g in found] == [("layers.*.norm", 2), ("head", 1)]
    assert found[0].cells[-1] == "×3.00 (1.90 to 3.10)"


def test_json_is_the_document() -> None:
    data = json.loads(render_fix(fixed(), "json"))
    assert data["schema"] == "fusion-fix/1"
    assert {
        "before", "after", "sites", "timing", "memory", "amdahl_cap", "predicted_us", "measured_us", "plan",
    } <= set(data)  # fmt: skip
    assert {"rule", "module", "tier", "provider", "state", "reason", "calls", "error", "eager_error"} <= set(
        data["sites"][0]
    )
    assert set(data["timing"]["patched_vs_eager"]) == {"ratio", "low", "high"}
    assert msgspec.json.decode(render_fix(fixed(), "json"), type=FixDocument) == fixed()


def test_json_has_no_infinity() -> None:
    fix = fixed()
    fix.timing.patched_vs_eager.high = math.inf
    assert json.loads(render_fix(fix, "json"))["timing"]["patched_vs_eager"]["high"] == 0.0


def test_markdown_shows_names_in_code_only() -> None:
    text = render_fix(fixed(), "markdown")
    assert "| `FUS201` | `layers.*.norm` | 3 | 2 | `rms_norm` | `library` | 3 | 2.0e-07 / 3.0e-07 |" in text
    assert text.startswith("### Fusion fix of `Llama (run 1m8aaaaaaaaa)`\n")


@pytest.mark.parametrize("fmt", ["text", "markdown"])
def test_hostile_names_steer_nothing(fmt: str) -> None:
    text = render_fix(hostile(), fmt)  # type: ignore[arg-type]
    assert not {"\x1b", "\r", "\u202e"} & {*text}
    if fmt == "markdown":
        outside = [line for line in text.splitlines() if "<script>" in line and "`" not in line]
        assert [line for line in outside if not line.startswith(("+", "-"))] == []


def test_there_is_no_html_of_a_fix() -> None:
    with pytest.raises(AuditError, match="a fix has no report in html; there are: text, json, markdown"):
        render_fix(fixed(), "html")
