"""Settings of a project: ``[tool.fusion-audit]`` in the nearest ``pyproject.toml``.

::

    [tool.fusion-audit]
    script = "bench.py --tiny"            # what fusion-audit gate --record runs, from this file's folder on
    name = "llama-serving"                # name of stored runs, instead of the script's
    select = ["FUS2", "unfused-softmax"]  # ids, starts of ids, or names; empty: every rule
    ignore = ["FUS501"]
    rules = ["audit_rules"]               # folders of further rules, relative to this file
    severity = { FUS101 = "info" }

    [[tool.fusion-audit.suppress]]
    rule = "FUS201"
    modules = "model.vision.*"
    reason = "frozen, runs once per prompt"

Beside these stand the budgets that ``fusion-audit gate`` holds a run to (:mod:`auditor.budget`).

Options of the command line win over these.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from auditor.budget import Budget, Entry, Increase, Requirement, Text
from auditor.errors import AuditError
from auditor.toml_lines import Step, TomlLines

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SECTION = "tool.fusion-audit"
Severity = Literal["error", "warning", "info"]


class Suppression(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Sites of ``rule`` in modules that match the glob ``modules`` are left out, for a stated reason."""

    rule: Text
    """Id of a rule, the start of one, or its name."""
    modules: Text
    """Glob of module paths."""
    reason: Text
    """Why: it stands in reports."""


class Config(Budget, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What a project sets, its budgets included. ``rules`` are absolute folders here."""

    script: str = ""
    """What ``gate --record`` runs: a path from the file's folder on, and its arguments, quoted as for a shell."""
    name: str = ""
    """Name of stored runs, instead of the script's."""
    select: list[Text] = []
    """Rules that run: ids, starts of ids (``FUS2``), or names; empty: every rule."""
    ignore: list[Text] = []
    """Rules that do not run."""
    rules: list[Text] = []
    """Folders of further rules, relative to the file."""
    severity: dict[str, Severity] = {}
    """Severity of findings, instead of the rule's."""
    suppress: list[Suppression] = []
    """Sites to leave out, each with its reason."""

    def chooses(self, rule: str, name: str) -> bool:
        """Whether the rule with this id and name is to run: selected (or nothing is) and not ignored."""
        selected = not self.select or any(covers(s, rule, name) for s in self.select)
        return selected and not any(covers(s, rule, name) for s in self.ignore)

    def severity_of(self, rule: str, name: str, default: str) -> str:
        """The severity set for the rule: by its id or name before any start of its id, the longest first."""
        for selector in sorted(self.severity, key=lambda s: (s in (rule, name), len(s)), reverse=True):
            if covers(selector, rule, name):
                return self.severity[selector]
        return default

    def check_selectors(self, known: Sequence[tuple[str, str]]) -> None:
        """Refuse a selector that names none of the ``known`` (id, name) pairs: it would silently do nothing."""
        used = [*self.select, *self.ignore, *self.severity, *(s.rule for s in self.suppress)]
        for selector in used:
            if not any(covers(selector, rule, name) for rule, name in known):
                names = [part for pair in known for part in pair]
                raise AuditError(f"no rule {selector!r}{_like(selector, names)}; see: fusion-audit rules list")


def covers(selector: str, rule: str, name: str) -> bool:
    """Whether ``selector`` means this rule: its name, its id, or the start of its id (``FUS2``), in any case."""
    wanted = selector.lower()
    return wanted == name.lower() or rule.lower().startswith(wanted)


@dataclass(frozen=True, slots=True)
class Written:
    """Settings in a file, and where in it each of them stands."""

    path: Path
    section: str
    """What is in front of a key in messages: the table's name, or nothing."""
    line: Callable[[Sequence[Step]], int | None]

    def at(self, *path: Step) -> str:
        """``file:line`` of a key or entry, or of what is around it; the file alone where it isn't there."""
        line = self.line(path)
        return f"{self.path}:{line}" if line else str(self.path)

    def name(self, keys: Sequence[str]) -> str:
        return ".".join(part for part in (self.section, *keys) if part)


_Read = TypeVar("_Read", bound=Budget)


def load_config(start: Path | None = None) -> Config:
    """The settings of the ``pyproject.toml`` nearest to ``start`` (a folder), upwards; defaults without one."""
    file = settings_file(start)
    return read_config(file) if file else Config()


def settings_file(start: Path | None = None) -> Path | None:
    """The ``pyproject.toml`` nearest to ``start`` (a folder, else the current one), upwards."""
    start = (start or Path.cwd()).absolute()
    return next((f for folder in (start, *start.parents) if (f := folder / "pyproject.toml").is_file()), None)


def read_config(file: Path) -> Config:
    """The settings in ``file``. Raises :class:`AuditError` with file, line, key and what was expected."""
    return read_written(file)[0]


def read_written(file: Path) -> tuple[Config, Written]:
    """The settings in ``file``, and where they stand. Raises as :func:`read_config`."""
    text = read_text(file, "TOML")
    try:
        table = _section(tomllib.loads(text), file)
    except tomllib.TOMLDecodeError as error:
        raise AuditError(f"{file}: is not valid TOML: {error}") from None
    lines = TomlLines(text)
    written = Written(file, SECTION, lambda path: lines.of((*SECTION.split("."), *path)))
    config = converted(table, Config, written)
    folders = [str((file.parent / Path(rules).expanduser()).absolute()) for rules in config.rules]
    return msgspec.structs.replace(config, rules=folders), written


def read_text(file: Path, language: str) -> str:
    """A settings file as text. Raises :class:`AuditError` where it can't be read."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise AuditError(f"{file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise AuditError(f"{file}: is not UTF-8 text, as {language} has to be") from None


def converted(data: Any, kind: type[_Read], written: Written) -> _Read:
    """``data`` as settings. Raises :class:`AuditError` with file, line, key and what was expected."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise AuditError(_explain(str(error), kind, written)) from None


def override(
    config: Config,
    *,
    name: str | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    rules: Sequence[str | Path] = (),
) -> Config:
    """The settings with the command line's on top: ``select`` and ``ignore`` replace, ``rules`` adds folders."""
    return msgspec.structs.replace(
        config,
        name=name or config.name,
        select=list(select) or config.select,
        ignore=list(ignore) or config.ignore,
        rules=[*config.rules, *(str(Path(folder).absolute()) for folder in rules)],
    )


def _section(document: dict[str, Any], file: Path) -> Any:
    tool = document.get("tool", {})
    section = tool.get("fusion-audit", {}) if isinstance(tool, dict) else {}
    if not isinstance(section, dict):
        raise AuditError(f"{file}: {SECTION} must be a table, not {type(section).__name__}")
    return section


_KINDS: dict[str, type[msgspec.Struct]] = {
    "suppress": Suppression, "budgets": Entry, "require": Requirement, "max_increase": Increase,
}  # fmt: skip
"""What the tables inside of the settings hold, by their key."""


def _explain(message: str, kind: type[msgspec.Struct], written: Written) -> str:
    """Msgspec's ``Expected `array`, got `str` - at `$.select` `` as a sentence with a line number."""
    reason, _, path = message.partition(" - at ")
    steps = [name or int(i) for name, i in re.findall(r"\.([\w-]+)|\[(\d+)\]", path.strip("`"))]
    keys = [step for step in steps if isinstance(step, str)]
    unknown = re.search(r"unknown field `([^`]*)`", reason)
    missing = re.search(r"missing required field `([^`]*)`", reason)
    key = written.name(keys)
    known = (_KINDS.get(keys[-1], kind) if keys else kind).__struct_fields__
    if unknown:
        like = _like(unknown[1], known)
        return f"{written.at(*steps, unknown[1])}: {key or 'the file'} has no key {unknown[1]!r}{like}"
    entry = next((f" (entry {step + 1})" for step in steps if isinstance(step, int)), "")
    if missing:
        return f"{written.at(*steps)}: {key}{entry} needs {missing[1]!r}; each has: {', '.join(known)}"
    return f"{written.at(*steps)}: {key or 'the file'}{entry}: {_plain(reason)}"


def _plain(reason: str) -> str:
    words = {"array": "a list", "str": "text", "object": "a table", "int": "a number", "float": "a number"}
    words |= {"bool": "true or false"}
    reason = reason.replace("Expected `int`, got `float`", "Expected a whole number, got one with a fraction")
    plain = re.sub(r"`([\w |]+)`", lambda m: _either(m[1], words), reason)
    plain = plain.replace("of length >= 1", "that isn't empty")
    return plain[:1].lower() + plain[1:] + _choices(reason)


def _either(kinds: str, words: dict[str, str]) -> str:
    """``int | float | str`` as "a number or text"; that a key may be absent goes without saying."""
    named = [words.get(kind, kind) for kind in kinds.split(" | ") if kind != "null"]
    return " or ".join(dict.fromkeys(named)) or "nothing"


def _choices(reason: str) -> str:
    return "; expected error, warning or info" if "enum value" in reason else ""


def _like(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(sorted(known)[:20])}"
