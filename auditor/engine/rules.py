"""Rules as the engine uses them, loaded from rule files; a mistake is told with its file and line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from auditor.engine.pattern import Pattern, compile_patterns, mentioned
from auditor.engine.rulefile import RuleFile, builtin_folder, read_rule_file, rule_files
from auditor.errors import AuditError

FAMILY_ORDER = (
    "elementwise", "reduction", "epilogue", "prologue", "horizontal", "algorithmic", "launch", "compiler", "movement",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RuleTest:
    """A graph in SSA text, and what the rule must say about it."""

    name: str
    graph: str
    expect: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule as loaded. Exactly one of ``patterns``, ``siblings``, ``chain`` and ``detect`` is set."""

    id: str
    name: str
    family: str
    status: str
    severity: str
    path: Path
    docs: dict[str, str]
    tests: tuple[RuleTest, ...]
    patterns: tuple[Pattern, ...] = ()
    outputs: tuple[str, ...] = ()
    siblings: dict[str, Any] | None = None
    chain: dict[str, Any] | None = None
    detect: dict[str, Any] | None = None
    where: dict[str, Any] = field(default_factory=dict)
    yields_to: tuple[str, ...] = ()
    replacement: str | None = None
    already_fused: tuple[str, ...] = ()


def load_rules(folders: Iterable[Path] = (), *, builtin: bool = True) -> list[Rule]:
    """Every rule of the package and of the user's ``folders`` (or single files), sorted by id.

    Raises AuditError for a missing folder, unreadable YAML, a rule that breaks the schema, an unknown
    rule named by another, or an id that is taken.
    """
    paths = rule_files(builtin_folder()) if builtin else []
    for folder in folders:
        paths.extend(rule_files(Path(folder)))
    files: dict[str, RuleFile] = {}
    for path in paths:
        file = read_rule_file(path)
        known = files.setdefault(file.id, file)
        if known is not file:
            raise AuditError(f"{file.at('id')}: rule id {file.id} is taken by {known.path}; choose another id")
    return sorted((_rule(file, files) for file in files.values()), key=lambda rule: rule.id)


def load_rule_files(paths: Sequence[Path]) -> list[Rule]:
    """The rules of the given files or folders, able to extend the built-in ones.

    A file that is itself a built-in rule is loaded once, from the place given.
    """
    given = [read_rule_file(p) for path in paths for p in rule_files(Path(path))]
    files = {file.id: file for file in (*map(read_rule_file, rule_files(builtin_folder())), *given)}
    return [_rule(files[file.id], files) for file in given]


def _rule(file: RuleFile, files: Mapping[str, RuleFile]) -> Rule:
    document = file.document
    match = document["match"]
    for other in document.get("yields_to", ()):
        if other not in files:
            raise AuditError(f"{file.at('yields_to')}: yields_to: no rule {other}")
    where = _where(file, files)
    rule = Rule(
        id=file.id,
        name=document["name"],
        family=document["family"],
        status=document["status"],
        severity=document["severity"],
        path=file.path,
        docs={k: v.strip() for k, v in document["docs"].items()},
        tests=tuple(RuleTest(t["name"], t["graph"], t["expect"]) for t in document["tests"]),
        patterns=tuple(_patterns(file, files, where)),
        outputs=tuple(match.get("outputs", ())),
        siblings=match.get("siblings"),
        chain=match.get("chain"),
        detect=match.get("detect"),
        where=where,
        yields_to=tuple(document.get("yields_to", ())),
        replacement=document.get("replacement"),
        already_fused=tuple(document.get("already_fused", ())),
    )
    if rule.patterns:
        _check_outputs(rule, file)
        _check_where(rule, file)
    return rule


def _extended(file: RuleFile, files: Mapping[str, RuleFile]) -> RuleFile:
    name = file.document["match"]["extend"]
    other = files.get(name)
    if other is None or "any_of" not in other.document["match"]:
        raise AuditError(f"{file.at('match', 'extend')}: match.extend: {name!r} is not a rule with any_of")
    return other


def _where(file: RuleFile, files: Mapping[str, RuleFile]) -> dict[str, Any]:
    """The rule's constraints; those of the rule that it extends hold too."""
    where: dict[str, Any] = dict(file.document.get("where", {}))
    if "extend" in file.document["match"]:
        for key, wanted in _extended(file, files).document.get("where", {}).items():
            own = where.get(key)
            where[key] = wanted if own is None else {**wanted, **own} if isinstance(wanted, dict) else [*wanted, *own]
    return where


def _patterns(file: RuleFile, files: Mapping[str, RuleFile], where: dict[str, Any]) -> list[Pattern]:
    match = file.document["match"]
    outputs = tuple(match.get("outputs", ()))
    if len(set(outputs)) != len(outputs):
        raise AuditError(f"{file.at('match', 'outputs')}: match.outputs: a name is listed twice")
    texts = [(text, file.at("match", "any_of", i)) for i, text in enumerate(match.get("any_of", ()))]
    if "extend" in match:
        forms = _extended(file, files).document["match"]["any_of"]
        texts = [(f"{match['with']}\n{form}", file.at("match", "with")) for form in forms]
    patterns = [p for text, at in texts for p in compile_patterns(text, outputs, f"{at}: pattern", where)]
    return sorted(patterns, key=lambda p: -len(p.calls))


def _check_outputs(rule: Rule, file: RuleFile) -> None:
    known = {name for p in rule.patterns for name in p.names}
    for name in rule.outputs:
        if name not in known:
            raise AuditError(f"{file.at('match', 'outputs')}: match.outputs: {name!r} is not a name of any pattern")


OF_NUMBERS = ("number", "size_power")
"""Constraints on ``c_*`` names; all others are on tensors."""


def _check_where(rule: Rule, file: RuleFile) -> None:
    known = {name for p in rule.patterns for name in p.names}
    for key, wanted in rule.where.items():
        numbers = set(wanted) if key in OF_NUMBERS else set()
        for name in sorted(numbers | _tensors(key, wanted)):
            at = file.at("where", key, name)
            if name not in known:
                raise AuditError(f"{at}: where: {name!r} is not a name of any pattern of {rule.id}")
            if name.startswith("c_") and name not in numbers:
                raise AuditError(f"{at}: where: {key} needs a tensor, not {name!r}")
            if name in numbers and not name.startswith("c_"):
                raise AuditError(f"{at}: where: {key} needs a c_* constant, not {name!r}")


def _tensors(key: str, wanted: Any) -> set[str]:
    """The names that a constraint takes for tensors."""
    if key in ("dtype", "rank", "holds", "cast_to", "phase"):
        return set(wanted)
    return mentioned(list(wanted.values()) if key in OF_NUMBERS else wanted)
