"""Rules that are no pattern of a dataflow: each has a search of its own, named in ``match.detect.what``.

``optimizer``     the kernels of an optimizer's step, parameter by parameter
``movement``      copies and casts that nothing needs (before chains: those that no chain would take in)
``weight_casts``  casts of weights that are made again
``multi_tensor``  kernels of one op over independent tensors (after chains: along the dataflow more is saved)
``launch_bound``  stretches in which the device waits for launches (last: it takes nothing from the others)
"""

from __future__ import annotations

from collections.abc import Callable, Set

from auditor.engine.launch_bound import propose_launch_bound
from auditor.engine.movement import propose_movement
from auditor.engine.multi_tensor import propose_multi_tensor
from auditor.engine.optimizers import propose_optimizers
from auditor.engine.propose import Proposals
from auditor.engine.rules import Rule
from auditor.engine.weight_casts import propose_weight_casts
from auditor.graph.canonical import Canonical

Detector = Callable[[Canonical, Rule, Set[int]], Proposals]

BEFORE_CHAINS = ("movement", "weight_casts")
LAST = ("multi_tensor", "launch_bound")

_DETECTORS: dict[str, Detector] = {
    "optimizer": propose_optimizers,
    "movement": propose_movement,
    "weight_casts": propose_weight_casts,
    "multi_tensor": propose_multi_tensor,
    "launch_bound": propose_launch_bound,
}

NOTHING_HERE = {
    "optimizer": "no optimizer steps here with kernels for each parameter apart",
    "movement": "no copy or cast here is one that nothing needs",
    "weight_casts": "no weight is cast here more often than it changes",
    "multi_tensor": "no kernels of one op over independent tensors lie together here",
    "launch_bound": "the device does not wait for launches here for long",
}
"""What ``why-not`` says where a detector found nothing."""


def detect(graph: Canonical, rule: Rule, taken: Set[int]) -> Proposals:
    """The sites of a rule with ``match.detect``; ``taken`` are indices of ops that other rules claimed."""
    assert rule.detect is not None
    return _DETECTORS[rule.detect["what"]](graph, rule, taken)
