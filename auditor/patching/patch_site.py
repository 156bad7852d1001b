"""A site of a traced graph: what it is called in every process, and what became of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor, fx

from auditor.patching.calls import Proposal, SiteCall
from auditor.patching.lead import Lead


@dataclass(frozen=True)
class SiteKey:
    """Which site it is, in every process: rule, module, what the region computes, and which of several alike."""

    rule: str
    module: str
    fingerprint: str
    ordinal: int


@dataclass(eq=False)
class PatchSite:
    """One site of one traced graph, and what became of it."""

    key: SiteKey
    kernels: int
    function: fx.GraphModule | None = None
    """The region as a function of its tensor inputs; None where there is none."""
    inputs: tuple[Tensor, ...] = ()
    """Fake tensors: shapes, strides and dtypes of the inputs of ``function``."""
    proposals: list[Proposal] = field(default_factory=list)
    chosen: Proposal | None = None
    reason: str = ""
    """Why it is not applied."""
    call: SiteCall | None = None
    declined: str = ""
    """Why replacements are not among the proposals."""
    lead: Lead | None = None
    """What leads to the inputs, where a proposal reads further up."""

    @property
    def calls(self) -> int:
        """How often the replacement computed it."""
        return 0 if self.call is None else self.call.calls

    @property
    def failure(self) -> str:
        """What the replacement raised when it ran; the separate ops ran then."""
        return "" if self.call is None else self.call.failure


def fingerprint(function: fx.GraphModule, inputs: Iterable[Tensor]) -> str:
    """Equal for regions that compute the same from tensors of the same dtypes and ranks."""
    names: dict[str, str] = {}
    lines = [f"{tensor.dtype} {tensor.dim()}" for tensor in inputs]
    for node in function.graph.nodes:
        names[node.name] = f"v{len(names)}"
        arguments = fx.node.map_arg((node.args, node.kwargs), lambda n: names[n.name])
        target = "" if node.op in ("placeholder", "output") else str(getattr(node.target, "__name__", node.target))
        lines.append(f"{node.op} {target} {arguments}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
