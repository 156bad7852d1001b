"""The fenced blocks of a page as examples that run, by their language, in one folder and one namespace a page.

``python`` runs; ``console`` runs its ``$`` lines and compares what they print; ``bash`` runs as a whole; ``toml`` and
``yaml`` are read as the files that they are; ``text`` is what something printed elsewhere, or a form. In front of a
block may stand::

    <!-- file: bench.py -->            the block is written into this file, and is read or run by later ones
    <!-- skip: next "the reason" -->   it can't run here: a GPU, a network, another machine
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, SkipParser
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

from auditor.cli import main
from auditor.config import read_config, tomllib
from auditor.engine.rules import load_rules
from auditor.gate.budget import file_demands

ROOT = Path(__file__).resolve().parents[2]
SHOWN_ONLY = ("text", "{toctree}", "{eval-rst}", "diff")
"""Languages of blocks that are looked at."""
Command = Callable[[list[str]], tuple[int, str]]
_FILE = re.compile(r"<!-- file: (\S+) -->\n$")
_VARIES = (
    (r"\b\d[\d,.]*\s?(?:ns|µs|ms|s)\b", "<time>"),
    (r"(?:< )?[+-]?\d[\d,.]*\s?%", "<share>"),
    (r"×\d[\d,.]*", "<ratio>"),
    (r"\bno longer\b|<share> longer|<ratio> as long", "<longer>"),
    (r" · idle <time> \(<share>\)", ""),  # a step on a busy machine may have no idle time
    (r"\d[\d,.]*\s?GB/s", "<bandwidth>"),
    (r"\b1m[0-9a-z]{10}\b", "<run>"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d", "<date>"),
    (r"\btorch \d[\w.+]*", "<torch>"),
    (re.escape("Intel(R) Xeon(R) Processor"), "<device>"),
)
"""What differs from run to run and from machine to machine. Counts and bytes do not."""


def documents() -> list[Path]:
    """README and every page that is written by hand."""
    generated = ("reference", "replacements", "_build")
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", *(p for p in pages if p.relative_to(ROOT / "docs").parts[0] not in generated)]


def examples(path: Path, command: Command) -> Iterator[Example]:
    """The examples of a page, to be evaluated in order in the current folder; ``command`` runs a ``fusion-audit``."""
    evaluators = {
        "python": _python, "console": lambda example: _console(example, command), "bash": _bash,
        "toml": _toml, "yaml": _yaml,
    }  # fmt: skip
    blocks = [CodeBlockParser(language, _kept(evaluate)) for language, evaluate in evaluators.items()]
    sybil = Sybil(parsers=[*blocks, SkipParser()], path=str(path.parent))
    document = sybil.parse(path)
    yield from document.examples()


def unknown_languages(path: Path) -> list[str]:
    """Languages of blocks that nothing here checks: each has to be one that runs, or one that is only looked at."""
    known = ("python", "console", "bash", "toml", "yaml", *SHOWN_ONLY)
    lexer = RawFencedCodeBlockLexer(re.compile(r"(?P<language>[^\n]*)\n"))

    class Page:
        text = path.read_text(encoding="utf-8")

    found: list[str] = [region.lexemes["language"].strip() for region in lexer(Page)]  # type: ignore[arg-type]
    return [language for language in found if language not in known]


def _kept(evaluate: Callable[[Example], None]) -> Callable[[Example], None]:
    """Write the block into its file, where it names one; else evaluate it."""

    def evaluated(example: Example) -> None:
        named = _FILE.search(example.document.text[: example.start])
        if named:
            Path(named[1]).parent.mkdir(parents=True, exist_ok=True)
            Path(named[1]).write_text(str(example.parsed), encoding="utf-8")
        if not named or Path(named[1]).suffix in (".toml", ".yaml", ".yml"):
            evaluate(example)

    return evaluated


def _python(example: Example) -> None:
    code = "\n" * (example.line + example.parsed.line_offset) + example.parsed
    exec(compile(code, str(example.path), "exec"), example.namespace)


def _bash(example: Example) -> None:
    code, out = _shell(str(example.parsed))
    assert code == 0, f"{_at(example)}: ended with {code}:\n{out}"


def _console(example: Example, command: Command) -> None:
    code = 0
    steps = list(_steps(str(example.parsed)))
    for at, (line, expected) in enumerate(steps):
        code, out = (code, f"{code}\n") if line == "echo $?" else _run(line, command)
        asked = at + 1 < len(steps) and steps[at + 1][0] == "echo $?"
        assert code == 0 or asked or line == "echo $?", f"{_at(example)}: {line!r} ended with {code}:\n{out}"
        if expected.strip():
            assert printed(expected, out), f"{_at(example)}: {line!r} printed something else:\n{out}"


def _steps(block: str) -> Iterator[tuple[str, str]]:
    """Each command of a block, and what is shown under it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, expected = part.partition("\n")
        yield line.split("  #")[0].strip(), expected


def _run(line: str, command: Command) -> tuple[int, str]:
    words = shlex.split(line)
    if words[0] == "fusion-audit" and not {"&&", ">", "|"} & set(words):
        return command(words[1:])
    return _shell(line)


def _shell(script: str) -> tuple[int, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", script], capture_output=True, text=True, timeout=600, env={**os.environ, "PATH": path}
    )
    return done.returncode, done.stdout if done.returncode == 0 else done.stdout + done.stderr


def in_this_process(words: list[str], captured: Callable[[], tuple[str, str]]) -> tuple[int, str]:
    """``fusion-audit`` with these arguments: its exit code, and its report or else its error."""
    captured()
    code = main(words)
    out, err = captured()
    return code, out or err


def printed(expected: str, out: str) -> bool:
    """Whether ``out`` is as shown: ``…`` stands for anything, and what varies from run to run only for its kind."""
    pattern = ".*?".join(re.escape(_plain(part)) for part in expected.split("…"))
    return re.fullmatch(pattern.replace("\\ ", r"\s*"), _plain(out), re.DOTALL) is not None


def _plain(text: str) -> str:
    """``text`` in one line (where lines break depends on the length of a time), and with kinds for figures."""
    text = " ".join(text.split()).replace(platform.processor() or "\0", "<device>")
    for pattern, kind in _VARIES:
        text = re.sub(pattern, kind, text)
    return text


def _toml(example: Example) -> None:
    settings = tomllib.loads(example.parsed)
    if "fusion-audit" not in settings.get("tool", {}):
        return
    file = Path(_file_name(example, "read_only.toml"))
    file.write_text(str(example.parsed), encoding="utf-8")
    read_config(file)
    file_demands(file, [(rule.id, rule.name) for rule in load_rules()]) if _limits(settings) else None


def _limits(settings: dict[str, Any]) -> bool:
    keys = settings["tool"]["fusion-audit"]
    return any(key.startswith("max_") or key in ("budgets", "require") for key in keys)


def _yaml(example: Example) -> None:
    data = yaml.safe_load(example.parsed)
    for step in data if isinstance(data, list) else []:
        if "fusion-auditor@" in str(step.get("uses", "")):
            _check_action(step)


def _check_action(step: dict[str, Any]) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    unknown = set(step["with"]) - set(action["inputs"])
    assert not unknown, f"action.yml has no input {', '.join(sorted(unknown))}"


def _file_name(example: Example, otherwise: str) -> str:
    named = _FILE.search(example.document.text[: example.start])
    return named[1] if named else otherwise


def _at(example: Example) -> str:
    return f"{Path(example.path).relative_to(ROOT)}:{example.line}"
