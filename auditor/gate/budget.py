"""From what a project wrote to the limits that a run is held to, each with the place where it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml

from auditor.budget import Budget, Entry, Increase, Limits, Requirement
from auditor.config import Written, converted, covers, read_text, read_written, settings_file
from auditor.engine.rulefile import Lines, Loader
from auditor.errors import AuditError
from auditor.gate.amounts import Allowed, increase, limit
from auditor.gate.measures import KINDS, Kind
from auditor.toml_lines import Step

OF_FINDINGS = ("unfused_kernels", "avoidable_kernels", "bytes")
"""What can be counted for one rule or some modules: kernels in findings, and the bytes that these move."""
BY_DEFAULT = {
    kind.key: Allowed(0.01, relative=True) if kind.key == "peak_memory" else Allowed(0.0)
    for kind in KINDS.values() if kind.counted
}  # fmt: skip
"""How much more than a baseline there may be where nobody said it: nothing of all that is the same in every run.

A few bytes of another scalar or seed move the peak of memory, which is no regression.
"""
UNSEEN = ("attention", "fused_optimizer")
"""Replacements that have no op of their own by which they could be seen in a run."""
_Amount = TypeVar("_Amount", float, Allowed)


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of a run that a limit is about; empty: all of it. ``model`` and ``modules`` are globs."""

    model: str = ""
    modules: str = ""
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """The most of one measure: ``most``, or an ``increase`` over the baseline."""

    id: str
    kind: Kind
    scope: Scope
    file: str = ""
    line: int = 0
    most: float | None = None
    increase: Allowed | None = None


@dataclass(frozen=True, slots=True)
class Demand:
    """A fused kernel that has to be live."""

    id: str
    wanted: Requirement
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Demands:
    """Everything that is demanded, and of whom."""

    limits: tuple[Limit, ...] = ()
    required: tuple[Demand, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.limits or self.required)

    def against_baseline(self, ranks: int = 1) -> Demands:
        """With those that hold against a baseline where no increase is set: no count may grow, peak memory by 1 %.

        Of several ``ranks`` it is not held: where a model is sharded, gloo's threads run ops in no fixed order.
        """
        if any(each.increase and each.scope == Scope() for each in self.limits):
            return self
        held = tuple(
            Limit(f"max_increase.{key}", KINDS[key], Scope(), increase=by)
            for key, by in BY_DEFAULT.items()
            if ranks == 1 or key != "peak_memory"
        )
        return Demands(self.limits + held, self.required)


def project_demands(known: Sequence[tuple[str, str]], start: Path | None = None) -> Demands:
    """Those of the ``pyproject.toml`` nearest to ``start`` (a folder, else the current one), upwards.

    The other argument and the errors are those of :func:`file_demands`.
    """
    file = settings_file(start)
    if file is None:
        return Demands()
    config, written = read_written(file)
    return _Reader(written, known).demands(config)


def given_demands(data: Any, written: Written, known: Sequence[tuple[str, str]]) -> Demands:
    """Those of ``data``, which has the keys of :class:`~auditor.budget.Budget` and stands in a place of its own.

    The other argument and the errors are those of :func:`file_demands`.
    """
    return _Reader(written, known).demands(converted(data, Budget, written))


def file_demands(file: Path, known: Sequence[tuple[str, str]]) -> Demands:
    """Those of a YAML file, or of the ``[tool.fusion-audit]`` of a TOML file.

    Args:
        file: with the keys of :class:`~auditor.budget.Budget`.
        known: ids and names of the rules that there are.

    Raises:
        AuditError: with file, line, key and what was expected.
    """
    if file.suffix == ".toml":
        config, written = read_written(file)
        demands = _Reader(written, known).demands(config)
    else:
        demands = given_demands(*_yaml(file), known)
    if not demands:
        raise AuditError(f"{file}: sets no limit; write one such as max_unfused_kernels, or leave --budget out")
    return demands


def _yaml(file: Path) -> tuple[Any, Written]:
    text = read_text(file, "YAML")
    loader = Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return {}, Written(file, "", lambda _: None)
        return loader.construct_document(root), Written(file, "", Lines(root).of)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f"{file}:{mark.line + 1}" if mark else str(file)
        raise AuditError(f"{at}: is not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # a date of month 13, a number of 5,000 digits
        raise AuditError(f"{file}: is not valid YAML: {str(error).splitlines()[0]}") from None
    finally:
        loader.dispose()


class _Reader:
    """Reads one file's demands; every mistake is told with its place."""

    def __init__(self, written: Written, known: Sequence[tuple[str, str]]) -> None:
        self._written, self._known = written, known

    def demands(self, budget: Budget) -> Demands:
        limits = list(self._limits(budget, Scope(), ()))
        for i, entry in enumerate(budget.budgets):
            limits += self._entry(entry, i)
        required = [self._required(wanted, i) for i, wanted in enumerate(budget.require)]
        return Demands(tuple(limits), tuple(required))

    def _entry(self, entry: Entry, i: int) -> list[Limit]:
        path = ("budgets", i)
        scope = Scope(entry.model or "", entry.modules or "", entry.rule or "")
        if scope == Scope():
            raise self._mistake(path, "narrows nothing; give it model, modules or rule, or move its limits up")
        self._check_rule(scope.rule, (*path, "rule"))
        limits = list(self._limits(entry, scope, path))
        if not limits:
            raise self._mistake(path, "sets no limit; write one such as max_unfused_kernels")
        return limits

    def _limits(self, limits: Limits, scope: Scope, path: tuple[Step, ...]) -> Iterator[Limit]:
        for kind in KINDS.values():
            amount = getattr(limits, f"max_{kind.key}", None)
            if amount is not None:
                where = (*path, f"max_{kind.key}")
                self._check_countable(kind, scope, where)
                yield self._limit(kind, scope, where, most=self._amount(partial(limit, amount, kind.unit), where))
        if limits.max_increase is not None:
            yield from self._increases(limits.max_increase, scope, (*path, "max_increase"))

    def _increases(self, allowed: Increase, scope: Scope, path: tuple[Step, ...]) -> Iterator[Limit]:
        if scope.modules:
            raise self._mistake(path, "can't be set for modules: a baseline keeps findings as a whole; use max_… there")
        for key in Increase.__struct_fields__:
            amount = getattr(allowed, key)
            if amount is not None:
                kind, where = KINDS[key], (*path, key)
                self._check_countable(kind, scope, where)
                by = self._amount(partial(increase, amount, kind.unit), where)
                yield self._limit(kind, scope, where, increase=by)

    def _limit(self, kind: Kind, scope: Scope, path: tuple[Step, ...], **amounts: Any) -> Limit:
        return Limit(_id(path), kind, scope, *self._place(path), **amounts)

    def _amount(self, read: Callable[[], _Amount], path: tuple[Step, ...]) -> _Amount:
        try:
            return read()
        except ValueError as error:
            raise self._mistake(path, str(error)) from None

    def _check_countable(self, kind: Kind, scope: Scope, path: tuple[Step, ...]) -> None:
        if (scope.modules or scope.rule) and kind.key not in OF_FINDINGS:
            raise self._mistake(
                path, f"can't be counted by rule or modules: {kind.label} belong to the run as a whole; "
                "there, limit unfused_kernels, avoidable_kernels or bytes"
            )  # fmt: skip

    def _required(self, wanted: Requirement, i: int) -> Demand:
        path: tuple[Step, ...] = ("require", i)
        given = [key for key in ("rule", "kernel", "replacement") if getattr(wanted, key)]
        if len(given) != 1:
            raise self._mistake(
                path, f"needs one of rule, kernel and replacement, and has {' and '.join(given) or 'none'}"
            )
        if wanted.at_least < 1:
            raise self._mistake((*path, "at_least"), f"must be at least 1, not {wanted.at_least}")
        self._check_rule(wanted.rule or "", (*path, "rule"))
        if wanted.replacement:
            self._check_replacement(wanted.replacement, (*path, "replacement"))
        return Demand(_id(path), wanted, *self._place(path))

    def _check_rule(self, selector: str, path: tuple[Step, ...]) -> None:
        if selector and not any(covers(selector, rule, name) for rule, name in self._known):
            raise self._mistake(path, f"no rule {selector!r}; see: fusion-audit rules list")

    def _check_replacement(self, name: str, path: tuple[Step, ...]) -> None:
        from fused_replacements._registry import HOME  # imports torch, which budgets without this key don't need

        if name not in HOME:
            raise self._mistake(path, f"no replacement {name!r}; there are: {', '.join(sorted(HOME))}")
        if name in UNSEEN:
            raise self._mistake(path, f"{name} runs as ops of PyTorch's own; require a rule, or a kernel by its name")

    def _place(self, path: tuple[Step, ...]) -> tuple[str, int]:
        return str(self._written.path.absolute()), self._written.line(path) or 0

    def _mistake(self, path: tuple[Step, ...], reason: str) -> AuditError:
        return AuditError(f"{self._written.at(*path)}: {self._written.name([_id(path)])}: {reason}")


def _id(path: Sequence[Step]) -> str:
    """``budgets[2].max_bytes``: entries are counted from 1, as a reader counts them."""
    text = ""
    for step in path:
        text += f"[{step + 1}]" if isinstance(step, int) else f".{step}" if text else step
    return text
