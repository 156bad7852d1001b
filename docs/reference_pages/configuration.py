"""docs/reference/configuration.md: the keys of ``[tool.fusion-audit]``, from the structures that read them."""

from __future__ import annotations

import msgspec

from auditor import config as module
from auditor.budget import Budget, Entry, Increase, Limits, Requirement
from auditor.config import Config, Suppression
from reference_pages.attributes import Attribute, attributes
from reference_pages.text import code, page, prose, table

INTRODUCTION = """\
The settings of a project stand in the `pyproject.toml` nearest to the current folder, upwards, under
`[tool.fusion-audit]`. The limits alone may also stand in a YAML file, with the same keys: `fusion-audit gate --budget
FILE`. Options of the command line win. A key or a rule that there is not and a value of another kind are errors, with
file and line (exit code 2)."""
EXAMPLE = """\
```toml
[tool.fusion-audit]
script = "bench.py --tiny"         # what gate --record runs, from this file's folder on
ignore = ["FUS501"]
rules = ["audit_rules"]            # your own rule files; start one with: fusion-audit rules new NAME
severity = { FUS101 = "info" }

[[tool.fusion-audit.suppress]]     # a suppression that suppresses nothing is reported
rule = "FUS201"
modules = "model.vision.*"
reason = "frozen, runs once per prompt"
```"""
KINDS = {
    "str": "text",
    "Text": "text",
    "Text | None": "text",
    "int": "whole number",
    "Amount | None": "amount",
    "list[Text]": "list of texts",
    "dict[str, Severity]": "table: id, start of one, or name → `error`, `warning`, `info`",
    "list[Suppression]": "tables `[[tool.fusion-audit.suppress]]`",
    "list[Entry]": "tables `[[tool.fusion-audit.budgets]]`",
    "list[Requirement]": "tables `[[tool.fusion-audit.require]]`",
    "Increase | None": "table `[tool.fusion-audit.max_increase]`",
}
AMOUNTS = """\
An *amount* is a number in the measure's own unit (kernels; bytes; a share from 0 to 1), or text: `"1.2 GB"` (1e9
bytes), `"512 MiB"` (2²⁰), `"60 %"`. In `max_increase` a percentage is of what the baseline has."""


def pages() -> dict[str, str]:
    own = [a for a in attributes(Config) if a.name not in Budget.__struct_fields__]
    limits = attributes(Limits)
    entry = [a for a in attributes(Entry) if a.name not in Limits.__struct_fields__]
    budget = [a for a in attributes(Budget) if a.name not in Limits.__struct_fields__]
    return {
        "configuration.md": page(
            "Configuration", INTRODUCTION, EXAMPLE,
            "## `[tool.fusion-audit]`", _keys(own),
            "## Limits", _first(Limits), AMOUNTS, _keys(limits), _keys(budget),
            "## `[tool.fusion-audit.max_increase]`", _first(Increase), _keys(attributes(Increase)),
            "## `[[tool.fusion-audit.budgets]]`", f"{_first(Entry)} Beside these keys each of the limits above.",
            _keys(entry),
            "## `[[tool.fusion-audit.require]]`", _first(Requirement), _keys(attributes(Requirement)),
            "## `[[tool.fusion-audit.suppress]]`", _first(Suppression), _keys(attributes(Suppression)),
        )
    }  # fmt: skip


def _first(kind: type[msgspec.Struct]) -> str:
    return prose(kind.__doc__).split("\n\n")[0]


def _keys(found: list[Attribute]) -> str:
    for attribute in found:
        assert attribute.meaning, f"{module.SECTION}: {attribute.name} has no text under it in the source"
    rows = ((code(a.name), KINDS[a.annotation], _default(a), a.meaning) for a in found)
    return table(("key", "kind", "default", "meaning"), rows)


def _default(attribute: Attribute) -> str:
    if not attribute.default:
        return "needed"
    return "–" if attribute.default in ("None", "''", "[]", "{}") else code(attribute.default)
