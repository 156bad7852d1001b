"""Pages about the replacements, written from the docstrings of the modules that define them.

    python -m fused_replacements.docs            write docs/replacements/*.md
    python -m fused_replacements.docs --check    exit code 1, and what is stale, where they differ from the code

A page holds what the module says in its fixed sections, the signature, what ``supports`` refuses, the variants that
the samples name, and the schemas of the ops. Nothing on it is written by hand.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

import fused_replacements
from fused_replacements._dispatched import NAMESPACE, Op
from fused_replacements._examples import EXAMPLES
from fused_replacements._registry import Replacement, replacements

SECTIONS: Final = ("Formula", "Shapes and dtypes", "Bytes moved", "When it loses", "Source")
"""What every module says, in this order."""
BESIDE: Final[Mapping[str, tuple[str, ...]]] = {
    "act_mul": ("silu_mul", "gelu_mul"),
    "elementwise_chain": ("Chain",),
    "int8_linear": ("quantize_int8", "dequantize_int8"),
    "int4_linear": ("quantize_int4", "dequantize_int4"),
    "packed_linear": ("PackedLinears",),
    "attention": ("sdpa_backend",),
    "fused_optimizer": ("FusedOptimizer",),
}
"""What goes with a replacement: short forms, and what prepares its arguments."""
FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "replacements"
_NOTE: Final = "<!-- Written by `python -m fused_replacements.docs` from the docstrings. Change those. -->"
_UNDERLINED: Final = re.compile(r"^(\S.*)\n-{3,}$", re.MULTILINE)


@dataclass(frozen=True)
class Description:
    """A module's docstring in parts."""

    summary: str
    """Its first line."""
    body: str
    """What stands between that and the first section."""
    sections: Mapping[str, str]


def describe(docstring: str) -> Description:
    """The parts of a docstring whose sections have underlined headings. ValueError where it is not so built."""
    pieces = _UNDERLINED.split(inspect.cleandoc(docstring))
    summary, _, body = pieces[0].strip().partition("\n")
    sections = {title: text.strip() for title, text in zip(pieces[1::2], pieces[2::2], strict=True)}
    if tuple(sections) != SECTIONS or not all((summary, *sections.values())):
        raise ValueError(f"the docstring has the sections {', '.join(sections)}; it needs {', '.join(SECTIONS)}")
    return Description(summary, body.strip(), sections)


def signature(function: Callable[..., Any]) -> str:
    """``function`` as it is called, with the annotations as they stand in the source; one parameter a line if long."""
    name, call = function.__name__, inspect.signature(function)
    parameters: list[str] = []
    kind = None
    for parameter in call.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and kind not in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL):
            parameters.append("*")
        kind = parameter.kind
        parameters.append(_parameter(parameter))
    result = f" -> {_annotation(call.return_annotation)}" if call.return_annotation is not call.empty else ""
    short = f"{name}({', '.join(parameters)}){result}"
    return short if len(short) <= 88 else "\n".join([f"{name}(", *(f"    {p}," for p in parameters), f"){result}"])


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "*" * (
        1 if parameter.kind is parameter.VAR_POSITIONAL else 2 if parameter.kind is parameter.VAR_KEYWORD else 0
    )
    text = stars + parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        equals = " = " if parameter.annotation is not parameter.empty else "="
        text += f"{equals}{parameter.default!r}"
    return text


def _annotation(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else str(inspect.formatannotation(annotation))


def markdown(text: str) -> str:
    """Text of a docstring as Markdown: double back-quotes become single ones, ``::`` starts an indented block."""
    return re.sub(r"::$", ":", text.replace("``", "`"), flags=re.MULTILINE)


def page(replacement: Replacement) -> str:
    """The page of one replacement, in Markdown."""
    description = describe(replacement.doc)
    name = replacement.name
    parts = [f"# {name}", _NOTE, markdown(description.summary)]
    parts += [markdown(description.body)] if description.body else []
    parts.append(f"```python\nfrom fused_replacements import {name}\n\n{signature(replacement.function)}\n```")
    parts.append(f"```python\n{example(name)}\n```")
    parts += [_beside(name)] if name in BESIDE else []
    for title, text in description.sections.items():
        parts += [f"## {title}", markdown(text)]
        if title == "Shapes and dtypes":
            parts += [*_variants(replacement), _support(replacement)]
    return "\n\n".join([*parts, "## Ops", _ops(replacement)]) + "\n"


def example(name: str) -> str:
    """A program that calls the replacement ``name`` once."""
    return f"import torch\nfrom fused_replacements import {name}\n\n{EXAMPLES[name]}"


def _beside(name: str) -> str:
    """What is imported from the package to go with a replacement: signature, and the first line of what it does."""
    found = []
    for other in BESIDE[name]:
        value = getattr(fused_replacements, other)
        first = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")
        members = [f"`.{member}`" for member in vars(value) if member[0] != "_"] if isinstance(value, type) else []
        has = f" It has {', '.join(members)}." if members else ""
        call = f"```python\nfrom fused_replacements import {other}\n\n{signature(value)}\n```"
        found.append(f"{call}\n\n{markdown(first)}{has}")
    return "\n\n".join(["Beside it:", *found])


def _variants(replacement: Replacement) -> list[str]:
    labels = [sample.label for sample in replacement.samples(4, 64, torch.float32, torch.device("cpu"))]
    listed = ", ".join(f"*{markdown(label)}*" for label in labels)
    return [f"Variants that are tested and measured: {listed}."] if labels else []


def _support(replacement: Replacement) -> str:
    backward = "" if replacement.has_backward else " It has no backward."
    question = f"`find({replacement.name!r}).supports(…)`"
    return f"{question} takes the same arguments, and answers None, or why they would not run fused.{backward}"


def _ops(replacement: Replacement) -> str:
    halves = [half for op in replacement.ops for half in (op.forward, op.backward)[: 1 + replacement.has_backward]]
    lines = [f"* `{NAMESPACE}::{half.schema}` ({_built(half)})" for half in halves]
    lines += [f"* also computed by: `{provider.name}`" for provider in replacement.alternatives]
    return "\n".join(lines) or "None of its own: it is built from PyTorch's."


def _built(op: Op) -> str:
    if op.kernels is not None:
        return f"Triton: `kernels/{op.kernels.module}.py`"
    return "composed of other ops" if op.composed is not None else "the compiler's kernel"


def index(found: Sequence[Replacement]) -> str:
    """The list of all pages, by family."""
    lines = ["# Replacements", "", _NOTE, ""]
    for family in dict.fromkeys(replacement.family for replacement in found):
        lines += [f"## {family.capitalize()}", "", "| replacement | what it is | backward |", "|---|---|---|"]
        for replacement in found:
            if replacement.family == family:
                summary = markdown(describe(replacement.doc).summary).replace("|", r"\|")
                backward = "yes" if replacement.has_backward else "no"
                lines.append(f"| [{replacement.name}]({replacement.name}.md) | {summary} | {backward} |")
        lines.append("")
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """File name to text, for every file of the folder."""
    found = list(replacements())
    return {"README.md": index(found), **{f"{replacement.name}.md": page(replacement) for replacement in found}}


def stale(folder: Path, wanted: Mapping[str, str]) -> list[str]:
    """Names of files that differ from ``wanted``, are missing, or are too many."""
    files = (path for path in folder.rglob("*") if path.is_file())
    there = {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in files}
    return sorted(name for name in {*there, *wanted} if there.get(name) != wanted.get(name))


def write(folder: Path, wanted: Mapping[str, str]) -> list[str]:
    """Make ``folder`` hold exactly ``wanted``; the names that changed."""
    changed = stale(folder, wanted)
    for name in changed:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name in wanted:
            (folder / name).write_text(wanted[name], encoding="utf-8")
        else:
            (folder / name).unlink()
    return changed


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m fused_replacements.docs", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is stale")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the pages lie (default: docs/replacements)")
    options = parser.parse_args(arguments)
    if options.check:
        found = stale(options.folder, pages())
        print(f"stale, run `make docs`: {', '.join(found)}" if found else f"{options.folder} is fresh")
        return 1 if found else 0
    changed = write(options.folder, pages())
    print(f"{options.folder}: {', '.join(changed) if changed else 'nothing changed'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
