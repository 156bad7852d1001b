"""Changes of the user's own source that findings suggest: a comment above each site, the call where it is plain.

Only files of the user's are looked at: not installed packages, and none that changed since the run, for lines would be
off. A suggestion is text to read before it is taken; it never changes what the script computes beyond rounding.
"""

from __future__ import annotations

import ast
import difflib
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from auditor.config import Config
from auditor.document import Finding, Site
from auditor.engine.rules import Rule
from auditor.fix.spelling import rewritten
from auditor.graph.model import OpGraph, Source
from auditor.graph.tables import from_tables
from auditor.report.format import safe
from auditor.store import StoredRun

PACKAGE = "fused_replacements"
CALLS = {
    "rms_norm": "y = rms_norm(x, weight, eps)",
    "add_rms_norm": "y, total = add_rms_norm(x, residual, weight, eps)",
    "layer_norm": "y = layer_norm(x, weight, bias, eps)",
    "add_layer_norm": "y, total = add_layer_norm(x, residual, weight, bias, eps)",
    "softmax": "p = softmax(scores, mask, scale=scale)",
    "act_mul": "h = act_mul(gate, up, activation)",
    "rope": "q, k = rope(q, k, cos, sin)",
    "linear_epilogue": "y = linear_epilogue(x, weight, bias, activation, residual=residual)",
    "packed_linear": "q, k, v = packed_linear(x, [q_weight, k_weight, v_weight])",
    "attention": "out = attention(q, k, v, mask, scale=scale)",
    "elementwise_chain": "y = elementwise_chain(fn, *tensors)",
}
"""By replacement: the shape of its call."""
NOTHING = "No finding lies in source files of yours: there is nothing to suggest a change of."
_INSTALLED = ("/site-packages/", "/dist-packages/")


@dataclass(frozen=True)
class Change:
    """What a file would become."""

    path: Path
    old: str
    new: str
    folder: Path = field(default_factory=Path.cwd)
    """Where a diff of it is to be applied."""

    @property
    def name(self) -> str:
        """The path from that folder, if it lies there."""
        return _shown(self.path, self.folder)

    @property
    def diff(self) -> str:
        """A unified diff, as ``patch -p1`` and ``git apply`` take it where the path is relative."""
        name = safe(self.name)
        lines = difflib.unified_diff(
            self.old.splitlines(keepends=True), self.new.splitlines(keepends=True), f"a/{name}", f"b/{name}"
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


@dataclass(frozen=True)
class Suggestions:
    """What the findings of a run suggest; ``notes`` says of each file without a change why there is none."""

    changes: list[Change]
    notes: list[str]


@dataclass
class _Spot:
    """One place in one file, and the findings that lie there."""

    finding: Finding
    rule: Rule
    lines: set[int] = field(default_factory=set)
    sites: int = 0


def suggestions(
    stored: StoredRun, rules: Sequence[Rule], config: Config, *, folder: Path | None = None, only: str = ""
) -> Suggestions:
    """A change for each of the user's files that findings of the run lie in, in the order of their names.

    ``folder``: from where files are named, the current one unless it is given. ``only``: the fingerprint of the one
    finding that is meant.
    """
    chosen = {rule.id: rule for rule in rules if config.chooses(rule.id, rule.name)}
    findings = [f for f in stored.document.findings if f.rule in chosen and f.phase != "backward"]
    findings = [f for f in findings if only in ("", f.fingerprint)]
    graph = from_tables(stored.tables)
    spots: dict[str, dict[tuple[str, str, str], _Spot]] = {}
    for finding in findings:
        for place in finding.places:
            _add(spots, finding, chosen[finding.rule], _sources(graph, place))
    folder, recorded = folder or Path.cwd(), stored.document.run.created
    found = [_change(Path(file), list(own.values()), recorded, folder) for file, own in sorted(spots.items())]
    notes = [one for one in found if isinstance(one, str)]
    return Suggestions([one for one in found if isinstance(one, Change)], notes if spots else [NOTHING])


def _add(
    spots: dict[str, dict[tuple[str, str, str], _Spot]], finding: Finding, rule: Rule, sources: list[Source]
) -> None:
    if not sources:
        return
    home = sources[0]
    key = (finding.rule, finding.fingerprint, home.function)
    spot = spots.setdefault(home.file, {}).setdefault(key, _Spot(finding, rule))
    spot.sites += 1
    spot.lines |= {source.line for source in sources if (source.file, source.function) == (home.file, home.function)}


def _sources(graph: OpGraph, place: Site) -> list[Source]:
    """Where the ops of a site stand in files of the user's, those of its own function first."""
    found = [graph.ops[i].source for i in place.ops if 0 <= i < len(graph.ops)]
    own = [source for source in found if source is not None and is_users(source.file)]
    home = place.source
    return sorted(own, key=lambda s: home is None or (s.file, s.function) != (home.file, home.function))


def is_users(file: str) -> bool:
    """Whether ``file`` is Python source that the user wrote, as far as its place tells."""
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    inside = any(Path(file).is_relative_to(folder) for folder in installed)
    return file.endswith(".py") and not inside and not any(part in file for part in _INSTALLED)


# --- one file --------------------------------------------------------------------------------------


def _change(path: Path, spots: Sequence[_Spot], recorded: str, folder: Path) -> Change | str:
    """What the file would become, or a sentence about why there is no change of it to suggest."""
    from auditor.fix.run import changed_since

    name = _shown(path, folder)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            old = file.read()
        tree = ast.parse(old)
    except (OSError, UnicodeError, ValueError, SyntaxError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not Python"
        return f"{name} can't be read ({reason}): no change of it is suggested."
    changed = changed_since(path, recorded)
    new = old if changed else _edited(old, tree, list(spots))
    if new != old and _is_python(new):
        return Change(path, old, new, folder)
    if _holds_all(old, spots):
        return f"{name}: what would be suggested is in the file already, from an earlier time."
    if changed:
        return f"{name} has changed since the run, and lines may have moved: run it again for suggestions."
    return f"{name}: there is no change to suggest."


def _holds_all(text: str, spots: Sequence[_Spot]) -> bool:
    """Whether there are as many comments of each rule as it would get."""
    wanted = Counter(spot.rule.id for spot in spots)
    return all(text.count(f"fusion-audit: {rule} ") >= number for rule, number in wanted.items())


def _edited(old: str, tree: ast.Module, spots: list[_Spot]) -> str:
    """Edits go from the last line to the first, so that the lines of those to come stay where they are."""
    lines = old.splitlines(keepends=True)
    newline = "\r\n" if old.count("\r\n") > old.count("\n") / 2 else "\n"
    names: set[str] = set()
    placed = [(statement, spot) for spot in spots if (statement := _statement(tree, min(spot.lines))) is not None]
    for statement, spot in sorted(placed, key=lambda pair: (-pair[0].lineno, pair[1].rule.id)):
        above = statement.lineno - 1
        if _is_marked(lines, above, spot.rule.id):
            continue
        found = rewritten(lines, statement, spot.finding.replacement or "", spot.finding.dtype)
        if found is not None:
            lines[above : statement.end_lineno], name = [found[0]], found[1]
            names.add(name)
        indent = lines[above][: len(lines[above]) - len(lines[above].lstrip())]
        lines[above:above] = [f"{indent}# {text}{newline}" for text in _comment(spot, found is not None)]
    if names:
        at = _import_line(tree)
        lines[at:at] = [f"from {PACKAGE} import {', '.join(sorted(names))}{newline}"]
    return "".join(lines)


def _comment(spot: _Spot, done: bool) -> Iterator[str]:
    finding = spot.finding
    per_site = max(finding.kernels // max(finding.sites, 1), 1)
    if finding.instead:
        yield f"fusion-audit: {spot.rule.id} {spot.rule.name}: {per_site} kernels; instead: {finding.instead}"
        return
    yield f"fusion-audit: {spot.rule.id} {spot.rule.name}: {per_site} kernels that could be one"
    call = CALLS.get(finding.replacement or "")
    if done:
        return
    if call is None:
        yield from (f"    {line}" for line in spot.rule.docs.get("instead", "").splitlines() if line.strip())
        return
    yield f"    from {PACKAGE} import {finding.replacement}"
    yield f"    {call}"


def _is_marked(lines: list[str], above: int, rule: str) -> bool:
    """Whether the comment is there already, or one of another rule with ours above it."""
    for line in reversed(lines[:above]):
        if not line.lstrip().startswith("#"):
            return False
        if f"fusion-audit: {rule} " in line:
            return True
    return False


def _statement(tree: ast.Module, line: int) -> ast.stmt | None:
    """The innermost statement that ``line`` belongs to."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(around, key=lambda node: (node.lineno, -(node.end_lineno or 0)), default=None)


def _import_line(tree: ast.Module) -> int:
    """The index of the line before which an import goes: after the last one at the top, or after the docstring."""
    at = 0
    for node in tree.body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, (ast.Import, ast.ImportFrom)) or (docstring and not at):
            at = node.end_lineno or node.lineno
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            break
    return at


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _shown(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path).lstrip("/")
