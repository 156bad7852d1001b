"""Rules: loading the YAML files, with errors that name the file, the line and what was expected."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from auditor.engine.pattern import Pattern, compile_patterns
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
    """One rule as loaded. Exactly one of ``patterns``, ``siblings`` and ``chain`` is set."""

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
    where: dict[str, Any] = field(default_factory=dict)
    yields_to: tuple[str, ...] = ()
    replacement: str | None = None
    already_fused: tuple[str, ...] = ()


def builtin_folder() -> Path:
    """The folder of the rules that ship with the package: inside the wheel, or beside it in a checkout."""
    packaged = Path(__file__).resolve().parents[1] / "rules"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[2] / "rules"


@cache
def schema() -> dict[str, Any]:
    """The JSON schema of a rule file (``rules/schema.json``, for editors too)."""
    loaded: dict[str, Any] = json.loads((builtin_folder() / "schema.json").read_text(encoding="utf-8"))
    return loaded


def load_rules(folders: Iterable[Path] = (), *, builtin: bool = True) -> list[Rule]:
    """Every rule of the package and of the user's ``folders`` (or single files), sorted by id.

    Raises AuditError for a missing folder, unreadable YAML, a rule that breaks the schema, an unknown
    rule named by another, or an id that is taken.
    """
    paths = _files(builtin_folder()) if builtin else []
    for folder in folders:
        paths.extend(_files(Path(folder)))
    documents: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path in paths:
        document = _read(path)
        known = documents.get(document["id"])
        if known is not None:
            raise AuditError(f"{path}: rule id {document['id']} is taken by {known[0]}; choose another id")
        documents[document["id"]] = (path, document)
    rules = [_rule(path, document, documents) for path, document in documents.values()]
    return sorted(rules, key=lambda rule: rule.id)


def load_rule_files(paths: Sequence[Path]) -> list[Rule]:
    """The rules of the given files or folders, able to extend the built-in ones.

    A file that is itself a built-in rule is loaded once, from the place given.
    """
    given = [p for path in paths for p in _files(Path(path))]
    documents = {d["id"]: (p, d) for p in _files(builtin_folder()) for d in (_read(p),)}
    wanted = []
    for path in given:
        document = _read(path)
        documents[document["id"]] = (path, document)
        wanted.append(document["id"])
    return [_rule(*documents[i], documents) for i in wanted]


def _files(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise AuditError(f"{folder}: no such rules folder; give a folder of .yaml rule files or one such file")
    found = sorted(p for p in folder.rglob("*.y*ml") if p.suffix in (".yaml", ".yml"))
    if not found:
        raise AuditError(f"{folder}: holds no .yaml rule file; `fusion-audit rules new NAME` makes one")
    return found


class _Lines:
    """Line numbers of the keys and items of a YAML document, by path."""

    def __init__(self, text: str) -> None:
        self.lines: dict[tuple[Any, ...], int] = {}
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            self._walk(root, ())

    def _walk(self, node: yaml.Node, path: tuple[Any, ...]) -> None:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                self.lines[(*path, key.value)] = key.start_mark.line + 1
                self._walk(value, (*path, key.value))
        elif isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                self._walk(item, (*path, i))

    def of(self, path: Iterable[Any]) -> int:
        where = tuple(path)
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise AuditError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise AuditError(f"{path}: is not UTF-8 text (byte {error.start}); save the rule as UTF-8") from None
    try:
        document = yaml.safe_load(text)
        lines = _Lines(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f"{path}:{mark.line + 1}" if mark else str(path)
        raise AuditError(f"{at}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise AuditError(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(document, dict):
        raise AuditError(
            f"{path}:1: expected a mapping with id, name, match, docs, tests; found {type(document).__name__}"
        )
    _validate(path, document, lines)
    document["__lines__"] = lines
    return document


def _validate(path: Path, document: dict[str, Any], lines: _Lines) -> None:
    errors = list(jsonschema.Draft202012Validator(schema()).iter_errors(document))
    if not errors:
        return
    error = jsonschema.exceptions.best_match(errors)
    where = list(error.absolute_path)
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        allowed = error.schema.get("properties", {})
        unknown = [k for k in error.instance if k not in allowed]
        where.append(unknown[0])
        message = f"unknown key {unknown[0]!r}; expected one of {', '.join(allowed)}"
    elif error.validator == "required":
        missing = [k for k in error.validator_value if k not in error.instance]
        message = f"missing {', '.join(repr(k) for k in missing)}"
    elif error.validator == "enum":
        message = f"{error.instance!r} is not one of {', '.join(map(str, error.validator_value))}"
    elif error.validator in ("oneOf", "anyOf"):
        message = "expected exactly one of any_of, extend (with `with`), siblings or chain"
    else:
        hint = error.schema.get("description", "") if isinstance(error.schema, dict) else ""
        message = f"{_short(error.message)}{'; expected: ' + hint if hint else ''}"
    place = ".".join(str(p) for p in where) or "the rule"
    raise AuditError(f"{path}:{lines.of(where)}: {place}: {message}")


def _short(message: str, limit: int = 160) -> str:
    line = message.splitlines()[0]
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _rule(path: Path, document: dict[str, Any], documents: dict[str, tuple[Path, dict[str, Any]]]) -> Rule:
    match = document["match"]
    lines: _Lines = document["__lines__"]
    for other in document.get("yields_to", ()):
        if other not in documents:
            raise AuditError(f"{path}:{lines.of(('yields_to',))}: yields_to: no rule {other}")
    rule = Rule(
        id=document["id"],
        name=document["name"],
        family=document["family"],
        status=document["status"],
        severity=document["severity"],
        path=path,
        docs={k: v.strip() for k, v in document["docs"].items()},
        tests=tuple(RuleTest(t["name"], t["graph"], t["expect"]) for t in document["tests"]),
        patterns=tuple(_patterns(path, document, documents)),
        outputs=tuple(match.get("outputs", ())),
        siblings=match.get("siblings"),
        chain=match.get("chain"),
        where=document.get("where", {}),
        yields_to=tuple(document.get("yields_to", ())),
        replacement=document.get("replacement"),
        already_fused=tuple(document.get("already_fused", ())),
    )
    _check_names(rule, lines)
    return rule


def _patterns(path: Path, document: dict[str, Any], documents: dict[str, tuple[Path, dict[str, Any]]]) -> list[Pattern]:
    match = document["match"]
    lines: _Lines = document["__lines__"]
    texts: list[tuple[str, int]] = []
    if "any_of" in match:
        texts = [(text, lines.of(("match", "any_of", i))) for i, text in enumerate(match["any_of"])]
    elif "extend" in match:
        other = documents.get(match["extend"])
        if other is None or "any_of" not in other[1]["match"]:
            raise AuditError(
                f"{path}:{lines.of(('match', 'extend'))}: match.extend: {match['extend']!r} is not a rule with any_of"
            )
        texts = [(match["with"] + "\n" + t, lines.of(("match", "with"))) for t in other[1]["match"]["any_of"]]
    outputs = tuple(match.get("outputs", ()))
    if len(set(outputs)) != len(outputs):
        raise AuditError(f"{path}:{lines.of(('match', 'outputs'))}: match.outputs: a name is listed twice")
    patterns = [p for text, line in texts for p in compile_patterns(text, outputs, f"{path}:{line}: pattern")]
    return sorted(patterns, key=lambda p: -len(p.calls))


def _check_names(rule: Rule, lines: _Lines) -> None:
    if not rule.patterns:
        return
    known = {name for p in rule.patterns for name in p.names}
    for name in rule.outputs:
        if name not in known:
            raise AuditError(
                f"{rule.path}:{lines.of(('match', 'outputs'))}: match.outputs: {name!r} is not a name of any pattern"
            )
    used: set[str] = set()
    for key, value in rule.where.items():
        if isinstance(value, dict):
            used |= set(value)
            if key in ("row_of", "full_size"):
                used |= set(value.values())
        else:
            used |= {n for item in value for n in (item if isinstance(item, list) else [item])}
    for name in sorted(used - known):
        raise AuditError(
            f"{rule.path}:{lines.of(('where',))}: where: {name!r} is not a name of any pattern of {rule.id}"
        )
    for first, second in {pair for p in rule.patterns for pair in p.symmetric_pairs()}:
        swapped = {first: second, second: first}
        if _renamed(rule.where, swapped) != _renamed(rule.where, {}):
            raise AuditError(
                f"{rule.path}:{lines.of(('where',))}: where: {first!r} and {second!r} are the two operands of a "
                "commutative op and may come in either order; constrain both alike"
            )


def _renamed(where: Any, names: dict[str, str]) -> Any:
    """``where`` with names exchanged, in an order that does not matter."""
    if isinstance(where, dict):
        return {names.get(k, k): _renamed(v, names) for k, v in where.items()}
    if isinstance(where, list):
        return sorted((_renamed(v, names) for v in where), key=repr)
    return names.get(where, where) if isinstance(where, str) else where
