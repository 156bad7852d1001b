"""The terminal report."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
from report_factory import MODELING, clean, hostile, llama, rms_finding, rope_finding

from auditor.document import CoverageInfo, Document, Refused, Run, Saving, SourceInfo, Suppressed, Totals
from auditor.report import Format, render
from auditor.report.excerpt import quote
from auditor.report.terminal import columns, fit, wrap

LLAMA = """\
fusion audit of llama-eager (3f2a91c0)
  script        examples/llama.py --prompt 'two words'
  device        NVIDIA H100 SXM5 80GB (cuda) · 3,350 GB/s · torch 2.13.0
  step          60.0 ms wall · kernels 48.0 ms · idle 12.0 ms (20 %)
  recording     the timed steps ran 4.9 % longer under the profiler · the graph step ran ×3.40 as
                long and is not used for times
  memory-bound  62 % of the kernel time, 29.8 ms of 48.0 ms
  kernels       1,204 in all · 1,010 memory-bound · 24 already fused · 632 unfused · 535 avoidable →
                669 would remain
  saving        step 7.10 ms of 60.0 ms (12 %, at most ×1.29) · kernel time 10.1 ms likely, 11.4 ms
                ideal · 11.0 GB less memory traffic
  coverage      1,190 of 1,204 kernels linked to an op (99 %) · 14 launched before the window ·
                edges observed in the execution trace (tensor ids) · 1 step

warning[FUS201] unfused-rms-norm
  --> transformers/models/llama/modeling_llama.py:67 in forward · LlamaRMSNorm × 49 sites
   = kernels       49 sites × 8 → 49 × 1: 392 → 49, 343 avoidable
   = memory        13.2 GB → 3.29 GB (75 % less)
   = device        11.1 ms now, saves 8.93 ms likely, 9.90 ms ideal
   = step          saves 7.10 ms of 60.0 ms (12 %, at most ×1.23)
   = replacement   rms_norm
   = edges         observed in the execution trace (tensor ids)
   = phase         forward · bf16
   = variant       eps=1e-06, weight=after the cast
   = ops           aten._to_copy, aten.pow, aten.mean, aten.add, aten.rsqrt, aten.mul
   = modules       model.layers.0.input_layernorm, model.layers.0.post_attention_layernorm,
                   model.layers.1.input_layernorm and 46 more

warning[FUS207] unfused-rotary-embedding (inferred)
 --> source line not recorded · outside any module × 48 sites
  = kernels       48 sites × 5 → 48 × 1: 240 → 48, 192 avoidable
  = memory        2.00 GB → 900 MB (55 % less)
  = device        2.40 ms now, saves 1.20 ms likely, 1.50 ms ideal
  = step          saves nothing of 60.0 ms: the step does not wait for these kernels
  = replacement   the rule names none yet
  = edges         inferred from shapes and order only: check the drawing before you act on it
  = phase         forward · bf16
  = ops           aten.neg, aten.cat, aten.mul, aten.add

refused: 4 sites that must not be fused
  FUS201 × 3  xn escapes to aten.neg, first at model.layers.3.norm
  FUS501 × 1  the weights have unlike dtypes, first at model.layers.0.mlp

  note  FUS101 in model.embed* is suppressed, 3 sites (tiny)
  warning  the suppression of FUS601 in *.cross_attn suppresses nothing: remove it (kept for export)

  note  4 of 1,204 ops have no source line.

what next
  fusion-audit show 3f2a91c0 --format html > audit.html  # the graphs, before and after
  fusion-audit fix 3f2a91c0  # replaces, verifies and measures
  fusion-audit why-not 3f2a91c0 FUS201 --at model.layers.3.norm  # which op forbids it

2 findings at 97 sites, 535 avoidable kernels
"""

CLEAN = """\
fusion audit of aa01
  script        m.py
  device        Intel Xeon (cpu) · 21 GB/s
  step          1.00 ms wall · kernels 900 µs
  memory-bound  11 % of the kernel time, 100 µs of 900 µs
  kernels       20 in all · 8 memory-bound · 0 unfused · 0
                avoidable → 20 would remain (on a CPU:
                dispatched ops)
  coverage      20 of 20 kernels linked to an op · edges
                observed in the execution trace (tensor ids)
                · 1 step

no findings
  Looked at 20 kernels, 8 of them memory-bound; no rule
  found kernels that should be one.

what next
  # the graphs, before and after
  fusion-audit show aa01 --format html > audit.html
  fusion-audit rules list  # what is looked for
"""


def test_the_whole_report():
    assert render(llama(), None, "text") == LLAMA


def test_the_whole_report_of_a_clean_run_on_a_narrow_terminal():
    assert render(clean(), None, "text", width=60) == CLEAN


def test_colours_change_nothing_but_colours():
    plain = render(llama(), None, "text")
    painted = render(llama(), None, "text", color=True)
    assert painted != plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == plain
    assert "\x1b" not in plain


@pytest.mark.parametrize("width", [48, 60, 80, 100, 160])
def test_no_line_but_a_command_is_wider_than_the_terminal(width):
    for document in (llama(), clean(), hostile()):
        lines = render(document, None, "text", width=width).splitlines()
        too_wide = [line for line in lines if columns(line) > width and "fusion-audit" not in line]
        assert too_wide == []


def test_no_line_is_padded():
    for document in (llama(), clean(), hostile(), Document()):
        assert [line for line in render(document, None, "text").splitlines() if line != line.rstrip()] == []


def test_hostile_names_cannot_steer_the_terminal():
    text = render(hostile(), None, "text")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    assert "\\x1b[31m\\x0a" in text


def test_hostile_names_stay_one_word_in_commands():
    # GIVEN a run whose id and refused rule hold quotes, bars and line ends
    lines = [line for line in render(hostile(), None, "text", width=900).splitlines() if "why-not" in line]
    # WHEN a shell splits the command that the report proposes
    words = shlex.split(lines[0], comments=True)
    # THEN each name is one argument
    assert words[:2] == ["fusion-audit", "why-not"]
    assert len(words) == 6
    assert words[4] == "--at"


class TestQuoting:
    @pytest.fixture
    def source(self, folder) -> SourceInfo:
        path = folder / "norm.py"
        path.write_text("def forward(self, x):\n\treturn x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)\n")
        return SourceInfo(file=str(path), line=2, function="forward")

    def _report(self, source: SourceInfo, created: str = "", width: int = 100) -> str:
        document = Document(run=Run(created=created), findings=[rms_finding(source=source)])
        return render(document, None, "text", width=width)

    def test_the_line_is_quoted_with_its_number_and_the_path_is_relative(self, source):
        assert (
            " --> norm.py:2 in forward · LlamaRMSNorm × 49 sites\n"
            "  |\n"
            "2 |     return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)\n"
            "  |\n"
            "  = kernels"
        ) in self._report(source)

    def test_a_long_line_is_cut(self, source):
        assert "2 |     return x * torch.rsqrt(x.pow(2).mean(-1…\n" in self._report(source, width=48)

    def test_a_file_that_changed_since_the_run_is_marked(self, source):
        os.utime(source.file, (2_000_000_000, 2_000_000_000))
        assert "(the file has changed since the run)" in self._report(source, "2026-05-04T09:00:00Z")
        assert "(the file has changed since the run)" not in self._report(source, "2040-01-01T00:00:00+00:00")

    @pytest.mark.parametrize("line", [0, -1, 3, 99])
    def test_a_line_that_is_not_there_is_not_quoted(self, source, line):
        source.line = line
        assert quote(source) is None
        assert "  |" not in self._report(source)

    @pytest.mark.parametrize(
        "name", ["/etc/passwd", "/dev/zero", "absent.py", "<string>", "folder.py", "bad\0.py", "pipe.py"]
    )
    def test_nothing_but_a_regular_python_file_is_opened(self, name, folder):
        (folder / "folder.py").mkdir()
        os.mkfifo(folder / "pipe.py")
        assert quote(SourceInfo(file=name, line=1)) is None

    def test_escapes_in_source_are_made_visible(self, folder):
        (folder / "evil.py").write_text('x = "\x1b[2J\u202e"\n')
        excerpt = quote(SourceInfo(file="evil.py", line=1))
        assert excerpt is not None
        assert excerpt.text == 'x = "\\x1b[2J\\u202e"'


def test_findings_come_by_likely_saving_and_untimed_ones_by_kernels():
    # GIVEN a simulation: nothing was timed
    untimed = {"device_us": 0.0, "saving": Saving()}
    document = Document(
        findings=[rope_finding(**untimed), rms_finding(**untimed)], coverage=CoverageInfo(edges="simulated")
    )
    text = render(document, None, "text")
    # THEN the one that removes more launches leads, and no times are made up
    assert text.index("FUS201") < text.index("FUS207")
    assert "not timed" in text
    assert not re.search(r"\d (µs|ms|s)\b", text)


def test_an_inferred_finding_says_so_in_its_title_and_how_to_do_better():
    document = Document(findings=[rope_finding()], coverage=CoverageInfo(edges="inferred"))
    text = render(document, None, "text")
    assert "warning[FUS207] unfused-rotary-embedding (inferred)\n" in text
    assert "= edges         inferred from shapes and order only: check the drawing before you act on it\n" in text
    assert "fusion-audit import TRACE.json --execution-trace ET.json" in text


def test_an_unlinked_trace_does_not_claim_to_be_clean():
    document = Document(coverage=CoverageInfo(kernels=1566, graph_replayed=1566), totals=Totals(kernels=1566))
    text = render(document, None, "text")
    assert "Nothing could be matched: none of 1,566 kernels is linked to an op." in text
    assert "0 of 1,566 kernels linked to an op (0 %) · 1,566 replayed from graphs" in text


def test_a_failed_script_and_overhead_are_reported():
    document = llama()
    document.run.exit_code = 3
    document.overhead.timing_us = document.overhead.bare_us / 2
    text = render(document, None, "text")
    assert "exit          the script ended with code 3" in text
    assert "the timed steps ran no longer under the profiler" in text


def test_only_idle_suppressions_are_warnings():
    document = Document(suppressed=[Suppressed(rule="FUS101", modules="", reason="")])
    assert "warning  the suppression of FUS101 in every module suppresses nothing: remove it\n" in render(
        document, None, "text"
    )


def test_an_empty_document_renders():
    text = render(Document(), None, "text")
    assert text.startswith("fusion audit of unnamed run\n")
    assert "0 of 0 kernels linked" in text


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two three", 7, ["one two", "three"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("a abcdefgh b", 4, ["a", "abcd", "efgh", "b"]),
        ("模型模型", 4, ["模型", "模型"]),
        ("", 4, [""]),
    ],
)
def test_wrapping_counts_columns(text, width, lines):
    assert wrap(text, width) == lines


def test_fitting_marks_what_it_cut():
    assert (fit("模型模型", 5), fit("abc", 3), fit("abcd", 3)) == ("模型…", "abc", "ab…")


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match=r"unknown report format 'pdf'; one of text, json, markdown, html"):
        render(Document(), None, "pdf")  # type: ignore[arg-type]


@pytest.mark.parametrize("fmt", ["text", "json", "markdown", "html"])
def test_no_format_needs_heavy_libraries(fmt):
    program = (
        "import sys; from auditor.report import render; from auditor.document import Document;"
        f"render(Document(), None, {fmt!r});"
        "print(sorted({'torch', 'pandas', 'dash', 'plotly', 'sqlalchemy', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "facts", [{"source": "trace"}, {"script": []}, {"plan": "/p/plan.yaml"}, {"patched_from": "1m8aaaaaaaaa"}], ids=str
)
def test_fix_is_named_only_for_a_script_that_runs_again_as_it_is(facts):
    document = llama()
    for name, value in facts.items():
        setattr(document.run, name, value)
    assert "fusion-audit fix" not in render(document, None, "text")


@pytest.mark.parametrize(
    ("applied", "words"),
    [
        (0, "from run 1m8aaaaaaaaa: NONE of its 3 sites was applied, and this is the script as it is"),
        (2, "from run 1m8aaaaaaaaa: 2 of its 3 sites applied"),
    ],
)
def test_the_head_says_how_much_of_a_plan_was_applied(applied, words):
    document = llama()
    run = document.run
    run.plan, run.patched_from, run.plan_sites, run.plan_applied = "/p/plan.yaml", "1m8aaaaaaaaa", 3, applied
    lines = render(document, None, "text", width=160).splitlines()
    assert f"  patched       by the plan /p/plan.yaml, {words}" in lines


def test_what_next_of_a_run_that_is_not_stored() -> None:
    # GIVEN an audit of auditor.record(): the store gave it no id
    document = llama()
    document.run.id = ""
    assert "what next" not in render(document, None, "text")
    assert "What next" not in render(document, None, "html")
    assert "fusion-audit show" in render(llama(), None, "text")


@pytest.mark.parametrize("fmt", ["text", "html", "markdown"])
def test_refused_places_are_as_short_as_those_of_findings(fmt: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    document = llama()
    document.refused = [Refused(rule="FUS101", reason="r", at=f"{MODELING}:67")]
    said = render(document, None, fmt)
    assert MODELING not in said
    assert "transformers/models/llama/modeling_llama.py:67" in said
