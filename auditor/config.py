"""Settings of a project: ``[tool.fusion-audit]`` in the nearest ``pyproject.toml``.

::

    [tool.fusion-audit]
    name = "llama-serving"                # name of stored runs, instead of the script's
    select = ["FUS2", "unfused-softmax"]  # ids, starts of ids, or names; empty: every rule
    ignore = ["FUS501"]
    rules = ["audit_rules"]               # folders of further rules, relative to this file
    severity = { FUS101 = "info" }

    [[tool.fusion-audit.suppress]]
    rule = "FUS201"
    modules = "model.vision.*"
    reason = "frozen, runs once per prompt"

Options of the command line win over these.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from auditor.errors import AuditError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SECTION = "tool.fusion-audit"
Severity = Literal["error", "warning", "info"]
Text = Annotated[str, msgspec.Meta(min_length=1)]


class Suppression(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Sites of ``rule`` in modules that match the glob ``modules`` are left out, for a stated reason."""

    rule: Text
    modules: Text
    reason: Text


class Config(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What a project sets. ``rules`` are absolute folders; ``severity`` maps rule ids or names."""

    name: str = ""
    select: list[Text] = []
    ignore: list[Text] = []
    rules: list[Text] = []
    severity: dict[str, Severity] = {}
    suppress: list[Suppression] = []

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


def load_config(start: Path | None = None) -> Config:
    """The settings of the ``pyproject.toml`` nearest to ``start`` (a folder), upwards; defaults without one."""
    start = (start or Path.cwd()).absolute()
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            return read_config(file)
    return Config()


def read_config(file: Path) -> Config:
    """The settings in ``file``. Raises :class:`AuditError` with file, line, key and what was expected."""
    try:
        text = file.read_text(encoding="utf-8")
        table = _section(tomllib.loads(text), file)
    except OSError as error:
        raise AuditError(f"{file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise AuditError(f"{file}: is not UTF-8 text, as TOML has to be") from None
    except tomllib.TOMLDecodeError as error:
        raise AuditError(f"{file}: is not valid TOML: {error}") from None
    try:
        config = msgspec.convert(table, Config)
    except msgspec.ValidationError as error:
        raise AuditError(_explain(str(error), file, text)) from None
    folders = [str((file.parent / Path(rules).expanduser()).absolute()) for rules in config.rules]
    return msgspec.structs.replace(config, rules=folders)


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


def _explain(message: str, file: Path, text: str) -> str:
    """Msgspec's ``Expected `array`, got `str` - at `$.select` `` as a sentence with a line number."""
    reason, _, path = message.partition(" - at ")
    steps = re.findall(r"\.([\w-]+)|\[(\d+|\.\.\.)\]", path.strip("`"))
    keys = [name for name, _ in steps if name]
    unknown = re.search(r"unknown field `([^`]*)`", reason)
    missing = re.search(r"missing required field `([^`]*)`", reason)
    key = ".".join([SECTION, *keys])
    if unknown:
        known = Suppression if keys else Config
        like = _like(unknown[1], list(known.__struct_fields__))
        return f"{_at(file, text, unknown[1])}: {key} has no key {unknown[1]!r}{like}"
    index = next((i for _, i in steps if i), "")
    entry = f" (entry {int(index) + 1})" if index.isdigit() else ""
    place = _at(file, text, keys[-1] if keys else "", int(index) if index.isdigit() and missing else 0)
    if missing:
        return f"{place}: {key}{entry} needs {missing[1]!r}; each has: rule, modules, reason"
    return f"{place}: {key}{entry}: {_plain(reason)}"


def _at(file: Path, text: str, key: str, nth: int = 0) -> str:
    """``file:line`` of the nth place where ``key`` is set after the section starts; ``file`` alone if not found."""
    header = re.search(rf"^\s*\[+\s*{re.escape(SECTION)}", text, re.MULTILINE)
    if header is None or not key:
        return str(file)
    pattern = rf"""^\s*(\[\[?\s*[\w.-]*\b)?["']?{re.escape(key)}["']?\s*[=\]]|[{{,]\s*["']?{re.escape(key)}["']?\s*="""
    found = list(re.finditer(pattern, text[header.start() :], re.MULTILINE))
    if not found:
        return str(file)
    offset = header.start() + found[min(nth, len(found) - 1)].end()
    return f"{file}:{text.count(chr(10), 0, offset) + 1}"


def _plain(reason: str) -> str:
    words = {"array": "a list", "str": "text", "object": "a table", "int": "a number", "float": "a number"}
    words |= {"bool": "true or false"}
    plain = re.sub(r"`(\w+)`", lambda m: words.get(m[1], m[1]), reason)
    plain = plain.replace("of length >= 1", "that isn't empty")
    return plain[:1].lower() + plain[1:] + _choices(reason)


def _choices(reason: str) -> str:
    return "; expected error, warning or info" if "enum value" in reason else ""


def _like(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(sorted(known)[:8])}"
