"""Two runs compared by what is the same in every run of one program: counts, bytes, and findings by fingerprint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from auditor.gate.comparable import minor
from auditor.gate.measures import Spreads, measured
from auditor.gate_document import Change, Comparison, FindingChange, Found, Head, Place, Snapshot
from auditor.report.format import plural, safe

_ORDER: tuple[Change, ...] = ("new", "more", "fewer", "fixed", "same")


def compare(before: Snapshot, after: Snapshot, spreads: tuple[Spreads, Spreads] = ({}, {})) -> Comparison:
    """``after`` against what ``before`` has of its rank. Any two runs compare; the remarks say what speaks against it.

    ``spreads`` are those of their measured figures, where these are medians of several runs.
    """
    own = before.of_rank(after.run.rank)
    if before.run.rank != after.run.rank:  # the medians are of the rank that it shows
        spreads = ({}, spreads[1])
    before = own or before
    return Comparison(
        before=before.run,
        after=after.run,
        measures=measured(before.figures, after.figures, spreads),
        findings=compare_findings(before.findings, after.findings, elsewhere=ran_elsewhere(before.run, after.run)),
        remarks=[*remarks_on(before.run, after.run), *_shapeless(before, after)],
    )


def ran_elsewhere(before: Head, after: Head) -> bool:
    """Whether the two ran on other devices, or with other versions of torch that are known."""
    versions = {minor(head.torch) for head in (before, after)} - {""}
    return before.device != after.device or before.kind != after.kind or len(versions) > 1


def compare_findings(before: list[Found], after: list[Found], *, elsewhere: bool = False) -> list[FindingChange]:
    """The findings of both, matched by fingerprint; what got worse comes first.

    Code that is traced to apply a plan, or compiled, has lost its modules and lines: what is left of a finding there is
    matched by its rule, phase, ops and variant, and where several are alike in these, by its size. So is one of another
    class in the same file, or of another form in the same class, where it is as large as before. One whose ops changed
    is matched by its place, where it is the only one of its rule that went there, and the only one that came.

    ``elsewhere``: another device or version of torch, which run other ops and kernels for the same code, and whose
    recording may lack modules or lines. What is left there is matched by its rule, phase and class, then by its kind,
    then by its rule and phase, where it is the only one of these in each run.
    """
    was, now = ({found.fingerprint: found for found in side} for side in (before, after))
    _place(was, now)
    _place(now, was)
    _rename(was, now)
    _rewrite(was, now)
    if elsewhere:
        _translate(was, now)
    made = [_change(was.get(mark), now.get(mark), mark) for mark in dict.fromkeys([*was, *now])]
    return sorted(made, key=lambda c: (_ORDER.index(c.change), -abs(c.kernels[1] - c.kernels[0]), c.fingerprint))


def _place(placed: dict[str, Found], lost: dict[str, Found]) -> None:
    """Give findings of ``lost`` that name no place the fingerprint of the one like them that ``placed`` alone has."""
    free = {m: f for m, f in placed.items() if m not in lost and _has_place(f)}
    homeless = {m: f for m, f in lost.items() if m not in placed and not _has_place(f)}
    for mark, own in _certain(homeless, free):
        lost[own] = lost.pop(mark)


def _certain(some: dict[str, Found], others: dict[str, Found]) -> Iterator[tuple[str, str]]:
    """Those of one kind: the only two of it, else the only two of it that are of one size."""
    for kind in dict.fromkeys(found.kind for found in some.values() if found.kind):
        one, other = ({m: _size(f) for m, f in side.items() if f.kind == kind} for side in (some, others))
        alone = len(one) == len(other) == 1
        sizes = Counter(one.values())
        for mark, size in one.items():
            like = [m for m, its in other.items() if alone or its == size]
            if len(like) == 1 and sizes[size] == 1:
                yield mark, like[0]


def _rename(was: dict[str, Found], now: dict[str, Found]) -> None:
    """Give a finding of ``now`` the fingerprint of the one of its kind and size that is gone, where that is certain."""
    gone, came = ({m: f for m, f in side.items() if f.kind and _has_place(f)} for side in _unmatched(was, now))
    for kind in dict.fromkeys(found.kind for found in gone.values()):
        old, new = ([m for m, f in side.items() if f.kind == kind] for side in (gone, came))
        if len(old) == len(new) == 1 and _is_near(gone[old[0]], came[new[0]]):
            now[old[0]] = now.pop(new[0])


def _unmatched(was: dict[str, Found], now: dict[str, Found]) -> tuple[dict[str, Found], dict[str, Found]]:
    """What is gone, and what came."""
    return {m: f for m, f in was.items() if m not in now}, {m: f for m, f in now.items() if m not in was}


def _rewrite(was: dict[str, Found], now: dict[str, Found]) -> None:
    """Give a finding of ``now`` the fingerprint of the one that is gone from its place, where each is the only one."""
    gone, came = _unmatched(was, now)
    for mark, old in gone.items():
        new = [m for m, f in came.items() if _is_one_place(old, f)]
        if len(new) == 1 and sum(_is_one_place(f, came[new[0]]) for f in gone.values()) == 1:
            now[mark] = now.pop(new[0])


def _translate(was: dict[str, Found], now: dict[str, Found]) -> None:
    """Give a finding of ``now`` the fingerprint of the one of ``was`` that it shares most with, each alone in that."""
    for shared in (_rule_and_class, _kind, _rule):
        gone, came = _unmatched(was, now)
        for key in dict.fromkeys(map(shared, gone.values())):
            old, new = ([m for m, f in side.items() if shared(f) == key] for side in (gone, came))
            if key is not None and len(old) == len(new) == 1:
                now[old[0]] = now.pop(new[0])


def _rule_and_class(found: Found) -> tuple[str, ...] | None:
    return (found.rule, found.phase, found.module_class) if found.module_class else None


def _kind(found: Found) -> tuple[str, ...] | None:
    return (found.kind,) if found.kind else None


def _rule(found: Found) -> tuple[str, ...] | None:
    return found.rule, found.phase


def _is_one_place(one: Found, other: Found) -> bool:
    """Whether two are of one rule, phase, class, file and function; lines move."""
    if one.source is None or other.source is None or not _is_one_file(one.source, other.source):
        return False
    a, b = ((f.rule, f.phase, f.module_class, f.source.function if f.source else "") for f in (one, other))
    return a == b


def _is_near(one: Found, other: Found) -> bool:
    """Whether two are of one size, and of one class or file: elsewhere it is another that happens to be as large.

    The function says nothing: every module has a ``forward``.
    """
    if _size(one) != _size(other):
        return False
    return bool(one.module_class and one.module_class == other.module_class) or _is_one_file(one.source, other.source)


def _is_one_file(one: Place | None, other: Place | None) -> bool:
    """Files of a baseline are named from the repository's root on, those of a run are not."""
    if one is None or other is None or not one.file or not other.file:
        return False
    a, b = ("/" + place.file.replace("\\", "/").lstrip("/") for place in (one, other))
    return a.endswith(b) or b.endswith(a)


def _size(found: Found) -> tuple[float, ...]:
    return found.sites, found.kernels, found.avoidable, found.bytes


def _has_place(found: Found) -> bool:
    return bool(found.module_class) or found.source is not None


def _change(was: Found | None, now: Found | None, mark: str) -> FindingChange:
    nothing = Found(fingerprint=mark)
    a, b = was or nothing, now or nothing
    named = next((f for f in (now, was) if f and _has_place(f)), now or was or nothing)
    return FindingChange(
        change=change_of(a, b), fingerprint=mark, rule=named.rule, name=named.name, module_class=named.module_class,
        source=named.source, modules=named.modules, sites=(a.sites, b.sites), kernels=(a.kernels, b.kernels),
        avoidable=(a.avoidable, b.avoidable), bytes=(a.bytes, b.bytes), device_us=(a.device_us, b.device_us),
        likely_us=(a.likely_us, b.likely_us), step_us=(a.step_us, b.step_us), after=now.fingerprint if now else "",
    )  # fmt: skip


def change_of(was: Found, now: Found) -> Change:
    """What became of a finding, by what fusing it would remove, then its kernels, then its sites."""
    if not was.kernels or not now.kernels:
        return "same" if was.kernels == now.kernels else "new" if now.kernels else "fixed"
    before, after = ((f.avoidable, f.kernels, f.sites) for f in (was, now))
    if before == after:
        return "same"
    return "more" if after > before else "fewer"


def _shapeless(before: Snapshot, after: Snapshot) -> list[str]:
    """Bytes come from shapes, and most findings need them: a trace may have none."""
    sides = [("before", before.figures), ("after", after.figures)]
    without = [word for word, figures in sides if figures.kernels and not figures.bytes]
    return [
        f"The recording {word} holds no shapes: the bytes that its kernels move are not known, nor most findings."
        for word in (without if len(without) == 1 else [])
    ]


def remarks_on(before: Head, after: Head) -> list[str]:
    """What makes two runs hard to compare, a sentence each."""
    remarks = []
    if before.id and before.id == after.id:
        remarks.append("Both are the same run.")
    names = [safe(head.device or head.kind) for head in (before, after)]
    if names[0] != names[1]:
        remarks.append(f"The devices differ: {names[0]} before, {names[1]} after: counts compare, times do not.")
    if before.name != after.name:
        words = [safe(head.name) or "none" for head in (before, after)]
        remarks.append(f"The names differ: {words[0]} before, {words[1]} after.")
    if (before.select, before.ignore) != (after.select, after.ignore):
        remarks.append("The two runs were audited with different rules chosen.")
    if before.edges != after.edges:
        remarks.append(
            f"Edges are {safe(before.edges)} in one and {safe(after.edges)} in the other: inferred ones can be wrong."
        )
    if before.world_size != after.world_size:
        sizes = [f"{size} ranks" if size > 1 else "one process" for size in (before.world_size, after.world_size)]
        remarks.append(f"The runs are of {sizes[0]} before and {sizes[1]} after: one rank of each is compared.")
    if after.rank in before.unrecorded:
        remarks.append(
            f"Nothing was recorded of rank {after.rank} before: its figures and findings are compared with those of "
            f"rank {before.rank}, which may be another part of the model."
        )
    if not (before.alike and after.alike):
        remarks.append("Not all ranks are alike: these figures and findings are of the rank that a run shows.")
    if before.steps != after.steps:
        held = f"{plural(before.steps, 'step')} before, {plural(after.steps, 'step')} after"
        remarks.append(f"The recordings hold {held}; all figures are of one step.")
    return remarks
