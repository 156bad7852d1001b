"""A softmax with a scale and a mask before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from auditor.patching.adapters.operands import argument
from auditor.patching.adapters.scores import kept, scores_before
from auditor.patching.adapters.wanted import Wanted
from auditor.patching.region import Unreachable
from auditor.patching.site import SiteView


def softmax(view: SiteView) -> Iterator[Wanted]:
    """``softmax(scale · x + mask)``, or with a mask that fills."""
    scores = scores_before(view, view.call("p"))
    if len(scores.masks) > 1:
        raise Unreachable("it has more than one mask")
    if scores.masks and scores.scale_last:
        raise Unreachable("the scale comes after the mask")
    args: list[Any] = [argument(view, scores.reader, scores.first)]
    kwargs: dict[str, Any] = {"scale": scores.scale, "dtype": view.fake(view.region.outputs[0]).dtype}
    for mask in scores.masks:
        args.append(mask.operand if mask.kind == "added" else kept(mask))
        kwargs |= {} if mask.kind == "added" else {"fill": scores.fill}
    yield Wanted("softmax", tuple(args), kwargs, view.results(view.sink()))
