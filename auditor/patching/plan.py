"""The plan: which sites of a model get which replacement, in a file that people review and production applies."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from auditor.errors import AuditError

SCHEMA = "fusion-plan/1"
State = Literal["kept", "rolled_back", "refused", "failed"]
HEADER = """\
# Fused replacements for a model, chosen and measured by Fusion Auditor.
# `fusion-audit run --patch THIS_FILE script.py` applies what is `kept`; so does `auditor.patch(model, "THIS_FILE")`.
# To leave a site alone, change its state to `refused`.
"""


class Gain(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How many times as fast as what it replaces, with its 95 % interval."""

    ratio: float
    low: float
    high: float


class Evidence(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What was seen at the site when the plan was made. Errors are relative to the size of the exact result."""

    gain: Gain | None = None
    before_us: float = 0.0
    after_us: float = 0.0
    error: float = 0.0
    eager_error: float = 0.0
    mismatch: float = 0.0
    """Share of elements that differ from eager's in a 16-bit result."""


class PlanSite(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One site. ``rule``, ``module``, ``fingerprint`` and ``ordinal`` say which; the rest what becomes of it."""

    rule: str
    module: str
    fingerprint: str
    ordinal: Annotated[int, msgspec.Meta(ge=0)] = 0
    state: State = "kept"
    tier: Annotated[int, msgspec.Meta(ge=0, le=3)] = 2
    replacement: str = ""
    provider: str = ""
    options: dict[str, Any] = {}
    reason: str = ""
    evidence: Evidence = msgspec.field(default_factory=Evidence)

    @property
    def key(self) -> tuple[str, str, str, int]:
        return (self.rule, self.module, self.fingerprint, self.ordinal)


class Plan(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A plan for the model whose class is ``model``."""

    schema: str = SCHEMA
    run: str = ""
    """The stored audit that it was made from."""
    model: str = ""
    torch: str = ""
    device: str = ""
    sites: list[PlanSite] = []

    @property
    def kept(self) -> list[PlanSite]:
        return [site for site in self.sites if site.state == "kept"]

    def only(self, keys: Iterable[tuple[str, str, str, int]]) -> Plan:
        """The plan with nothing kept but the sites of these keys."""
        wanted = set(keys)
        return msgspec.structs.replace(self, sites=[site for site in self.kept if site.key in wanted])

    def save(self, path: Path) -> None:
        """Write the plan to ``path``, whole or not at all."""
        text = HEADER + msgspec.yaml.encode(self, order=None).decode()
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.{os.getpid()}")  # not of tempfile's: others may read a plan
        try:
            scratch.write_text(text, encoding="utf-8")
            os.replace(scratch, path)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise


def load_plan(path: Path | str) -> Plan:
    """Read a plan.

    Raises:
        AuditError: it cannot be read, or is no plan of a version that is known here.
    """
    path = Path(path)
    try:
        text = path.read_bytes()
    except OSError as error:
        raise AuditError(f"{path}: cannot read the plan: {error.strerror or error}.") from None
    try:
        plan = msgspec.yaml.decode(text, type=Plan)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise AuditError(f"{path}{_wrong(error)}; make one with `fusion-audit fix`.") from None
    if plan.schema != SCHEMA:
        raise AuditError(f"{path}: is of schema {plan.schema!r}, this version reads {SCHEMA}; make it again.")
    return plan


def _wrong(error: Exception) -> str:
    """``:3: not a plan: …`` where the parser says where, else what is wrong with the plan."""
    cause = error.__cause__ or error.__context__
    mark, problem = getattr(cause, "problem_mark", None), getattr(cause, "problem", None)
    if mark is not None and problem:
        return f":{mark.line + 1}: not a plan: {problem}"
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    if cause is not None:  # a tag or a date that says one thing and holds another
        return f": not a plan: a value can't be read ({said})"
    return f": not a plan: {said}"
