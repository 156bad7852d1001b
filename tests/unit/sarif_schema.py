"""The parts of SARIF 2.1.0 that the gate writes, after the OASIS specification (sections 3.13 to 3.52).

Nothing beside them is allowed, so that a key that is no SARIF is found.
"""

from __future__ import annotations

from typing import Any


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


_TEXT = {"type": "string", "minLength": 1}
_MESSAGE = _object(["text"], text=_TEXT)  # 3.11; multiformatMessageString 3.12 alike
_LEVEL = {"enum": ["none", "note", "warning", "error"]}  # 3.27.10
_RULE = _object(  # reportingDescriptor, 3.49
    ["id"],
    id=_TEXT,
    name=_TEXT,
    shortDescription=_MESSAGE,
    fullDescription=_MESSAGE,
    help=_MESSAGE,
    defaultConfiguration=_object([], level=_LEVEL),  # 3.50
)
_ARTIFACT = _object(  # artifactLocation, 3.4: a relative reference where there is a base
    ["uri"],
    uri={"type": "string", "format": "uri-reference", "pattern": "^[^/][^:\\\\ ]*$"},
    uriBaseId=_TEXT,
)
_PHYSICAL = _object(  # 3.29, region 3.30
    ["artifactLocation"],
    artifactLocation=_ARTIFACT,
    region=_object(["startLine"], startLine={"type": "integer", "minimum": 1}),
)
_LOGICAL = _object([], fullyQualifiedName=_TEXT, kind=_TEXT)  # 3.33
_LOCATION = _object([], physicalLocation=_PHYSICAL, logicalLocations={"type": "array", "items": _LOGICAL})  # 3.28
_RESULT = _object(  # 3.27
    ["message"],
    ruleId=_TEXT,
    ruleIndex={"type": "integer", "minimum": 0},
    level=_LEVEL,
    message=_MESSAGE,
    locations={"type": "array", "items": _LOCATION},
    partialFingerprints={"type": "object", "additionalProperties": _TEXT},
)
_DRIVER = _object(["name"], name=_TEXT, version=_TEXT, rules={"type": "array", "items": _RULE, "uniqueItems": True})
_RUN = _object(  # 3.14
    ["tool"],
    tool=_object(["driver"], driver=_DRIVER),
    automationDetails=_object([], id=_TEXT),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    results={"type": "array", "items": _RESULT},
)
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **_object(
        ["version", "runs"],
        **{"$schema": {"type": "string", "format": "uri"}, "version": {"const": "2.1.0"}},
        runs={"type": "array", "items": _RUN, "minItems": 1},
    ),
}
