"""docs/reference/documents.md and docs/reference/schema: the JSON of audits, gates, comparisons and fixes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from auditor.document import Document
from auditor.fix_document import FixDocument
from auditor.gate_document import Comparison, GateDocument, Snapshot
from reference_pages.attributes import attributes
from reference_pages.text import code, fence, page, prose, table

KINDS: tuple[tuple[str, type[msgspec.Struct], str], ...] = (
    ("Audit", Document, "fusion-audit show --format json"),
    ("Gate", GateDocument, "fusion-audit gate --format json"),
    ("Comparison", Comparison, "fusion-audit diff RUN_A RUN_B --format json"),
    ("Baseline", Snapshot, "fusion-audit baseline -o FILE"),
    ("Fix", FixDocument, "fusion-audit fix --format json"),
)
INTRODUCTION = """\
Plain data with a versioned name in `schema`. Fields may be added within a version; those that are there keep their
names and meaning. Times are in microseconds, sizes in bytes, shares from 0 to 1. The JSON schemas are files beside this
page: a document of this version is valid against them, and they allow further fields."""


def pages() -> dict[str, str]:
    found = {"documents.md": page("JSON documents", INTRODUCTION, *(part for kind in KINDS for part in _kind(*kind)))}
    return found | {f"schema/{_file(kind)}": _schema(kind) for _, kind, _ in KINDS}


def _kind(title: str, kind: type[msgspec.Struct], command: str) -> Iterator[str]:
    name = _name(kind)
    yield f"## {title}: `{name}`"
    yield f"{prose(kind.__doc__)} Schema: [{_file(kind)}](schema/{_file(kind)})."
    yield fence("text", command)
    for part in _structs(kind):
        yield f"### {part.__name__}" if part is not kind else ""
        yield prose(part.__doc__) if part is not kind and _has_doc(part) else ""
        yield table(
            ("field", "type", "meaning"), ((code(a.name), code(a.annotation), a.meaning) for a in attributes(part))
        )


def _structs(kind: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    """``kind`` and all that it holds, once each, as they are met."""
    found: list[type[msgspec.Struct]] = []

    def visit(info: Any) -> None:
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in found:
                return
            found.append(info.cls)
            for field in info.fields:
                visit(field.type)
        for part in ("types", "item_types"):
            for inner in getattr(info, part, ()):
                visit(inner)
        for part in ("item_type", "key_type", "value_type"):
            if hasattr(info, part):
                visit(getattr(info, part))

    visit(msgspec.inspect.type_info(kind))
    return found


def _has_doc(kind: type) -> bool:
    return bool(kind.__doc__) and not str(kind.__doc__).startswith(f"{kind.__name__}(")


def _anything(kind: type) -> dict[str, Any]:
    """The schema of ``object``: any value (an empty schema would count as none)."""
    assert kind is object, f"{kind} has no JSON schema"
    return {"description": "any value"}


def _name(kind: type[msgspec.Struct]) -> str:
    default = next(f.default for f in msgspec.structs.fields(kind) if f.name == "schema")
    return str(default)


def _file(kind: type[msgspec.Struct]) -> str:
    return f"{_name(kind).replace('/', '-')}.json"


def _schema(kind: type[msgspec.Struct]) -> str:
    schema = msgspec.json.schema(kind, schema_hook=_anything)
    definitions = schema["$defs"]
    for struct in _structs(kind):
        properties = definitions[struct.__name__]["properties"]
        for attribute in attributes(struct):
            if attribute.meaning:
                properties[attribute.name]["description"] = " ".join(attribute.meaning.split())
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": _name(kind)}
    return json.dumps({**head, **schema}, indent=1, ensure_ascii=False) + "\n"
