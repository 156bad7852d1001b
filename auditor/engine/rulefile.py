"""Rule files as written: YAML that keeps the schema, and the lines that messages point at."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from auditor.errors import AuditError

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser of libyaml where PyYAML was built with it: ten times as fast."""


def builtin_folder() -> Path:
    """The folder of the rules that ship with the package: inside the wheel, or beside it in a checkout."""
    packaged = Path(__file__).resolve().parents[1] / "rules"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[2] / "rules"


@cache
def schema() -> dict[str, Any]:
    """The JSON schema of a rule file (``rules/schema.json``, for editors too)."""
    loaded: dict[str, Any] = json.loads((builtin_folder() / "schema.json").read_text(encoding="utf-8"))
    return loaded


@cache
def _validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema())


_MOST_VALUES = 100_000
"""Of a document, aliases opened: nine lines of aliases of aliases stand for 10^9 values, and would never end."""


class Lines:
    """Line numbers (1-based) of the keys and items of a YAML document, by path."""

    def __init__(self, root: yaml.Node) -> None:
        self._lines: dict[tuple[Any, ...], int] = {}
        self._left = _MOST_VALUES
        self._walk(root, ())

    def of(self, path: Iterable[Any]) -> int:
        """The line of ``path``, or of the nearest thing around it."""
        where = tuple(path)
        while where and where not in self._lines:
            where = where[:-1]
        return self._lines.get(where, 1)

    def _walk(self, node: yaml.Node, path: tuple[Any, ...]) -> None:
        self._left -= 1
        if self._left < 0:
            problem = f"it holds more than {_MOST_VALUES:,} values, each alias counted with what it stands for"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                self._key(key, (*path, _plain(key)))
                self._walk(value, (*path, _plain(key)))
        elif isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                self._walk(item, (*path, i))

    def _key(self, key: yaml.Node, path: tuple[Any, ...]) -> None:
        if path in self._lines:
            problem = f"the key {key.value!r} is there already, in line {self._lines[path]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
        self._lines[path] = key.start_mark.line + 1


def _plain(key: yaml.Node) -> Any:
    return key.value if isinstance(key, yaml.ScalarNode) else id(key)


@dataclass(frozen=True, slots=True)
class RuleFile:
    """One rule as written. ``document`` keeps the schema."""

    path: Path
    document: dict[str, Any]
    lines: Lines

    @property
    def id(self) -> str:
        return str(self.document["id"])

    def at(self, *path: Any) -> str:
        """``file:line`` of a place in the document."""
        return f"{self.path}:{self.lines.of(path)}"


def rule_files(folder: Path) -> list[Path]:
    """The rule files in ``folder`` and below it, in order; a file is itself. Raises AuditError for none."""
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise AuditError(f"{folder}: no such rules folder; give a folder of .yaml rule files or one such file")
    found = sorted(p for p in folder.rglob("*.y*ml") if p.suffix in (".yaml", ".yml"))
    if not found:
        raise AuditError(f"{folder}: holds no .yaml rule file; `fusion-audit rules new NAME` makes one")
    return found


def read_rule_file(path: Path) -> RuleFile:
    """Read and validate ``path``. Raises AuditError with file, line, key and what was expected."""
    document, lines = _parsed(path, _text(path))
    if not isinstance(document, dict) or lines is None:
        raise AuditError(
            f"{path}:1: expected a mapping with id, name, match, docs, tests; found {type(document).__name__}"
        )
    file = RuleFile(path, document, lines)
    _validate(file)
    return file


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise AuditError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise AuditError(f"{path}: is not UTF-8 text (byte {error.start}); save the rule as UTF-8") from None


def _parsed(path: Path, text: str) -> tuple[Any, Lines | None]:
    """The data and its lines, from one parse of the text."""
    try:
        loader = Loader(text)
        try:
            root = loader.get_single_node()
            return (None, None) if root is None else (loader.construct_document(root), Lines(root))
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f"{path}:{mark.line + 1}" if mark else str(path)
        raise AuditError(f"{at}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise AuditError(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from None


def _validate(file: RuleFile) -> None:
    error = jsonschema.exceptions.best_match(_validator().iter_errors(file.document))
    if error is None:
        return
    where = list(error.absolute_path)
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        allowed = error.schema.get("properties", {})
        unknown = next(k for k in error.instance if k not in allowed)
        where.append(unknown)
        message = f"unknown key {unknown!r}; expected one of {', '.join(allowed)}"
    elif error.validator == "required":
        missing = [k for k in error.validator_value if k not in error.instance]
        message = f"missing {', '.join(repr(k) for k in missing)}"
    elif error.validator == "enum":
        message = f"{error.instance!r} is not one of {', '.join(map(str, error.validator_value))}"
    elif error.validator in ("oneOf", "anyOf"):
        message = "expected exactly one of any_of, extend (with `with`), siblings, chain or detect"
    else:
        hint = error.schema.get("description", "") if isinstance(error.schema, dict) else ""
        message = f"{_short(error.message)}{'; expected: ' + hint if hint else ''}"
    place = ".".join(str(p) for p in where) or "the rule"
    raise AuditError(f"{file.at(*where)}: {place}: {message}")


def _short(message: str, limit: int = 160) -> str:
    line = message.splitlines()[0]
    return line if len(line) <= limit else line[: limit - 1] + "…"
