"""The report as a pull request's comment."""

# ruff: noqa: E501 — whole reports are compared
from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_factory import HOSTILE, clean, hostile, llama, rms_finding

from auditor.document import Document, Refused
from auditor.report import render
from auditor.report.markdown import code

LLAMA = """\
### Fusion audit of `llama-eager (3f2a91c0)`

**535 of 1,204 kernels are avoidable.** Fusing them would likely take 7.10 ms (12 %) off the step.

|  |  |
| --- | --- |
| **script** | `examples/llama.py --prompt 'two words'` |
| **device** | `NVIDIA H100 SXM5 80GB (cuda) · 3,350 GB/s · torch 2.13.0` |
| **step** | 60.0 ms wall · kernels 48.0 ms · idle 12.0 ms (20 %) |
| **recording** | the timed steps ran 4.9 % longer under the profiler · the graph step ran ×3.40 as long and is not used for times |
| **memory-bound** | 62 % of the kernel time, 29.8 ms of 48.0 ms |
| **kernels** | 1,204 in all · 1,010 memory-bound · 24 already fused · 632 unfused · 535 avoidable → 669 would remain |
| **saving** | step 7.10 ms of 60.0 ms (12 %, at most ×1.29) · kernel time 10.1 ms likely, 11.4 ms ideal · 11.0 GB less memory traffic |
| **coverage** | 1,190 of 1,204 kernels linked to an op (99 %) · 14 launched before the window · edges observed in the execution trace (tensor ids) · 1 step |

| rule | where | sites | kernels | memory | kernel time | likely saving | off the step |
| --- | --- | --: | --: | --: | --: | --: | --: |
| `FUS201` `unfused-rms-norm` | `transformers/models/llama/modeling_llama.py:67 in forward` | 49 | 392 → 49 | 13.2 GB → 3.29 GB | 11.1 ms | 8.93 ms | 7.10 ms |
| `FUS207` `unfused-rotary-embedding` (inferred) | – | 48 | 240 → 48 | 2.00 GB → 900 MB | 2.40 ms | 1.20 ms | 0 µs |

<details><summary><code>FUS201 unfused-rms-norm</code> · 49 sites</summary>

- `transformers/models/llama/modeling_llama.py:67 in forward` · `LlamaRMSNorm × 49 sites`
- **kernels** 49 sites × 8 → 49 × 1: 392 → 49, 343 avoidable
- **memory** 13.2 GB → 3.29 GB (75 % less)
- **device** 11.1 ms now, saves 8.93 ms likely, 9.90 ms ideal
- **step** saves 7.10 ms of 60.0 ms (12 %, at most ×1.23)
- **replacement** `rms_norm`
- **edges** observed in the execution trace (tensor ids)
- **phase** `forward · bf16`
- **variant** `eps=1e-06, weight=after the cast`
- **ops** `aten._to_copy, aten.pow, aten.mean, aten.add, aten.rsqrt, aten.mul`
- **modules** `model.layers.0.input_layernorm, model.layers.0.post_attention_layernorm, model.layers.1.input_layernorm and 46 more`

</details>

<details><summary><code>FUS207 unfused-rotary-embedding</code> · 48 sites</summary>

- source line not recorded · `outside any module × 48 sites`
- **kernels** 48 sites × 5 → 48 × 1: 240 → 48, 192 avoidable
- **memory** 2.00 GB → 900 MB (55 % less)
- **device** 2.40 ms now, saves 1.20 ms likely, 1.50 ms ideal
- **step** saves nothing of 60.0 ms: the step does not wait for these kernels
- **replacement** the rule names none yet
- **edges** inferred from shapes and order only: check the drawing before you act on it
- **phase** `forward · bf16`
- **ops** `aten.neg, aten.cat, aten.mul, aten.add`

</details>

<details><summary>4 refused sites</summary>

| rule | sites | reason | first at |
| --- | --: | --- | --- |
| `FUS201` | 3 | `xn escapes to aten.neg` | `model.layers.3.norm` |
| `FUS501` | 1 | `the weights have unlike dtypes` | `model.layers.0.mlp` |

</details>

- `FUS101` in `model.embed*` is suppressed, 3 sites: `tiny`
- the suppression of `FUS601` in `*.cross_attn` suppresses nothing: remove it (`kept for export`)

> `4 of 1,204 ops have no source line.`
"""


def test_the_whole_comment():
    assert render(llama(), None, "markdown") == LLAMA


def test_a_clean_run_says_what_was_looked_at():
    text = render(clean(), None, "markdown")
    assert "Looked at 20 kernels, 8 of them memory-bound; no rule found kernels that should be one." in text
    assert "<details>" not in text


@given(st.text(), st.booleans())
def test_a_code_span_cannot_be_left(text, table):
    # GIVEN any text WHEN it is written as code
    span = code(text, table=table)
    # THEN no run of backticks inside is as long as the fence, and a table's cell holds no bar
    if span == "–":
        return
    fence = re.match("`+", span).group()
    inner = span[len(fence) : -len(fence)]
    assert span == f"{fence}{inner}{fence}"
    assert len(fence) not in {len(run) for run in re.findall("`+", inner)}
    assert "\n" not in span
    assert not table or "|" not in span


def test_hostile_names_appear_in_code_only():
    # GIVEN names with markup, mentions and escapes everywhere
    text = render(hostile(), None, "markdown")
    # WHEN code spans and escaped code elements are taken away
    rest = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", text)
    rest = re.sub(r"<code>[^<>]*</code>", "", rest)
    # THEN nothing of the names is left
    for piece in ("<script", "alert", "@someone", "evil.example", "\x1b", "\u202e"):
        assert piece not in rest
    assert set(re.findall(r"</?\w+", rest)) <= {"<details", "</details", "<summary", "</summary"}
    assert HOSTILE not in text


def test_rows_of_tables_have_as_many_cells_as_their_head():
    for document in (llama(), hostile()):
        tables = re.findall(r"(?:^\|.*\n)+", render(document, None, "markdown"), re.MULTILINE)
        assert len(tables) == 3
        for rows in (table.splitlines() for table in tables):
            assert len({row.count("|") for row in rows}) == 1


def test_a_comment_stays_below_what_github_accepts():
    # GIVEN hundreds of findings and refusals with long names
    document = llama()
    document.findings = [rms_finding(name="n" * 500, modules=["m" * 500] * 9, fingerprint=str(i)) for i in range(300)]
    document.refused = [Refused(rule="FUS101", reason=f"{i} {'r' * 500}", at="a" * 500) for i in range(300)]
    # WHEN the comment is written
    text = render(document, None, "markdown")
    # THEN it fits, and says what was left out
    assert len(text) < 65_536
    assert "260 smaller findings left out." in text
    assert "260 rarer reasons left out." in text


@pytest.mark.parametrize("document", [Document(), clean()])
def test_nothing_divides_by_zero(document):
    document.totals.step_us = 0.0
    document.totals.device_us = 0.0
    assert "not timed" in render(document, None, "markdown")
