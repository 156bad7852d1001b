"""Where the kernels of an op ran."""

from __future__ import annotations

from auditor.graph.model import Op, OpGraph


def is_on_cpu(graph: OpGraph, op: Op) -> bool:
    """Whether ``op`` computes on the host; where its tensors do not tell, as the graph as a whole."""
    device = next((value.device for value in op.outputs), graph.device_kind)
    return device.partition(":")[0] == "cpu"
