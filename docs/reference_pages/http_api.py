"""docs/reference/http-api.md: the OpenAPI document of the service, in tables."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

from auditor.store import Store
from dashboard.api.app import OPENAPI, create_api
from dashboard.api.service import Service
from dashboard.api.settings import Settings
from reference_pages.text import code, page, prose, table

INTRODUCTION = f"""\
`fusion-audit serve` answers these paths; the OpenAPI document that this page is written from is at
`{OPENAPI}`. Metrics for Prometheus are at `/metrics`.

A token is sent as the header `Authorization: Bearer TOKEN`. Where the service listens on this machine only, looking
needs none. What is refused is answered with one sentence, `{{"error": "…"}}`; so is a query parameter that a path does
not have. [auditor.client](python.md) is a client in Python."""


def pages() -> dict[str, str]:
    document = _document()
    everywhere = _everywhere(document)
    shared = table(("status", "answer of any path"), everywhere)
    parts = [
        part
        for path, operations in document["paths"].items()
        for part in _path(path, operations, document, dict(everywhere))
    ]
    return {"http-api.md": page("HTTP API", INTRODUCTION, shared, *parts)}


def _everywhere(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Answers that every path may give, but for those that say it went well."""
    found = [
        dict(_answers(operation["responses"], document))
        for operations in document["paths"].values()
        for operation in operations.values()
    ]
    return [(status, answer) for status, answer in found[0].items() if all(f.get(status) == answer for f in found)]


def _document() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, Store.open(folder) as store:
        document: dict[str, Any] = create_api(Service(store, Settings(host="127.0.0.1", port=8050))).openapi()
        return document


def _path(path: str, operations: dict[str, Any], document: dict[str, Any], everywhere: dict[str, str]) -> Iterator[str]:
    for method, operation in operations.items():
        yield f"## {method.upper()} {path}"
        yield prose(operation.get("description") or operation.get("summary"))
        rows = (_parameter(parameter) for parameter in operation.get("parameters", ()))
        yield table(("parameter", "in", "type", "meaning"), rows)
        body = operation.get("requestBody", {}).get("content", {})
        yield "\n".join(f"Body: `{kind}`{_of(content, document)}." for kind, content in body.items())
        own = [(s, answer) for s, answer in _answers(operation["responses"], document) if everywhere.get(s) != answer]
        yield table(("status", "answer"), own)


def _parameter(parameter: dict[str, Any]) -> tuple[str, str, str, str]:
    needed = " (needed)" if parameter.get("required") and parameter["in"] != "path" else ""
    meaning = parameter.get("description") or parameter.get("schema", {}).get("description", "")
    return code(parameter["name"]), parameter["in"], _type(parameter.get("schema", {})) + needed, meaning


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[1]
    if any_of := schema.get("anyOf"):
        return " or ".join(_type(part) for part in any_of if part.get("type") != "null")
    if enum := schema.get("enum"):
        return ", ".join(code(str(value)) for value in enum)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def _answers(responses: dict[str, Any], document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for status, answer in responses.items():
        kinds = answer.get("content", {})
        shown = ", ".join(f"`{kind}`{_of(content, document)}" for kind, content in kinds.items())
        yield status, ": ".join(part for part in (answer.get("description", ""), shown) if part)


def _of(content: dict[str, Any], document: dict[str, Any]) -> str:
    """The fields of a body, where the document names a structure for it."""
    schema = content.get("schema", {})
    name = schema.get("$ref", schema.get("items", {}).get("$ref", "")).rsplit("/", 1)[-1]
    fields = document.get("components", {}).get("schemas", {}).get(name, {}).get("properties", {})
    return f" with {', '.join(code(field) for field in fields)}" if fields else ""
