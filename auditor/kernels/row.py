"""A row of the table of kernel names, and how a name is held against its patterns."""

from __future__ import annotations

from dataclasses import dataclass

from auditor.kernels.family import Family
from auditor.kernels.name import KernelName


@dataclass(frozen=True, slots=True)
class Known:
    """What a kernel's name says."""

    family: Family = "other"
    library: str = ""
    """Where it is from, where that is told: ``vLLM``, ``Inductor``, ``cuDNN``."""
    fuses: str = ""
    """What it does in one kernel; empty for one that does a single op as PyTorch itself would."""
    ops: tuple[str, ...] = ()
    """ATen names that a compiler put into the name, in its order."""


@dataclass(frozen=True, slots=True)
class Row:
    """Names that mean one thing.

    ``names`` holds patterns, separated by blanks. A pattern is a part of the function's name; ``*`` stands for any
    text, ``^`` in front for its beginning (behind its namespaces), ``$`` at the end for its end. What follows a ``<``
    has to be in the template's arguments or the parameters. Letters match in either case, and nothing needs more
    than one pass over the name, however long it is.
    """

    family: Family
    names: str
    example: str
    """A name as profilers write it, its parameters cut short: this row has to be the first that it fits."""
    source: str
    """Where the name is from: a recorded trace, a report of one, or the file of the library that has the kernel."""
    library: str = ""
    fuses: str = ""

    @property
    def known(self) -> Known:
        return Known(self.family, self.library, self.fuses)


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern, taken apart. ``first`` is what a name has to hold before anything else is looked at."""

    first: str
    pieces: tuple[str, ...]
    begins: bool
    ends: bool
    args: tuple[str, ...]

    def fits(self, name: KernelName) -> bool:
        """Whether ``name`` is meant."""
        return self._fits_head(name.head) and (not self.args or _in_order(self.args, name.args, 0) >= 0)

    def _fits_head(self, head: str) -> bool:
        start = 0
        if self.begins:
            own = head.rfind("::") + 2 if "::" in head else 0
            starts = [at for at in (0, own) if head.startswith(self.first, at)]
            if not starts:
                return False
            start = starts[-1]
        end = _in_order(self.pieces, head, start)
        return end >= 0 and (not self.ends or head.endswith(self.pieces[-1]))


def _in_order(pieces: tuple[str, ...], text: str, start: int) -> int:
    """End of the last of ``pieces`` where they stand in ``text`` one after the other; -1 where they do not."""
    for piece in pieces:
        at = text.find(piece, start)
        if at < 0:
            return -1
        start = at + len(piece)
    return start


def patterns_of(row: Row) -> list[Pattern]:
    """The patterns of ``row``, in order."""
    return [_pattern(text) for text in row.names.lower().split()]


def _pattern(text: str) -> Pattern:
    head, _, args = text.partition("<")
    pieces = tuple(head.removeprefix("^").removesuffix("$").split("*"))
    if not all(pieces):
        raise ValueError(f"kernel pattern {text!r}: a piece of it is empty")
    return Pattern(pieces[0], pieces, head.startswith("^"), head.endswith("$"), tuple(args.split("*")) if args else ())
