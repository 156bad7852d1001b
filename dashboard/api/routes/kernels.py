"""The kernels of a run, filtered, sorted and paged; and two runs compared."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query

from dashboard.api.errors import responses
from dashboard.api.models import Comparison, Kernel, Kernels, Limit, Offset, Ref, Text
from dashboard.data import kernels as read
from dashboard.data.compare import compare
from dashboard.data.kernel_table import KernelTable, kernel_table

router = APIRouter(prefix="/api/v1", tags=["kernels"])

Sort = Literal[
    "kernel", "name", "op_name", "module", "module_class", "source", "phase", "kind", "rule", "fingerprint", "dur_us",
    "start_us", "stream", "device",
]  # fmt: skip
_EXACT = ("kind", "phase", "fingerprint", "module_class")
_PARTS = ("name", "op_name", "module", "source")


@router.get("/runs/{run}/kernels", responses=responses(404))
def list_kernels(
    run: Ref, limit: Limit = 100, offset: Offset = 0, sort: Sort = "kernel", order: Literal["asc", "desc"] = "asc",
    name: Text = "", op_name: Text = "", module: Text = "", source: Text = "", module_class: Text = "",
    kind: Text = "", phase: Text = "", rule: Text = "", fingerprint: Text = "",
    stream: Annotated[int | None, Query(ge=-(2**31), le=2**31)] = None,
    min_us: Annotated[float | None, Query(ge=0, le=1e15)] = None,
) -> Kernels:  # fmt: skip
    """Kernels in order of start unless sorted. `name`, `op_name`, `module` and `source` are parts, in any case; the
    other filters are exact; `rule` is an id or a name.
    """
    asked = locals()
    filters = [read.Filter(column, "equals", asked[column]) for column in _EXACT if asked[column]]
    if rule:  # its column holds id and name; either will do, or both
        filters.append(read.Filter("rule", "equals", rule if " " in rule else whole_rule(kernel_table(run), rule)))
    filters += [read.Filter(column, "contains", asked[column]) for column in _PARTS if asked[column]]
    filters += [read.Filter("stream", "equals", stream)] if stream is not None else []
    filters += [read.Filter("dur_us", "greaterThanOrEqual", min_us)] if min_us is not None else []
    order_by = () if sort == "kernel" and order == "asc" else ((sort, order == "desc"),)
    page = read.page(kernel_table(run), read.Query(tuple(filters), order_by), offset, offset + limit)
    return Kernels(total=page.total, dur_us=page.dur_us, kernels=[Kernel(**row) for row in page.rows])


def whole_rule(table: KernelTable, rule: str) -> str:
    """``FUS202 unfused-add-rms-norm`` for its id or its name; what is neither stays as it is, and finds nothing."""
    return next((word for word in table.rule.words if rule.casefold() in word.casefold().split(" ")), rule)


@router.get("/compare", responses=responses(404))
def compare_runs(
    a: Annotated[
        str, Query(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$", description="The run before")
    ],
    b: Annotated[str, Query(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$", description="The run after")],
) -> Comparison:
    """Two runs by finding and by kernel: gone, new, slower, faster."""
    return Comparison.model_validate(msgspec.to_builtins(compare(a, b)))
