"""Where the compiler's CPU code moves more than the inputs and outputs of a fused site.

On a CPU a fused op is compiled C++ (one function, several loop nests), not one hand-written kernel. Seen in the
generated code of torch 2.13:

* a concatenation in the middle is written out and read back (a GPU kernel picks each element from its source);
* softmax keeps its exponentials in a float32 buffer between two loop nests;
* an output in the middle of a site with a reduction (the residual sum before a norm) is written in a loop nest of
  its own and read back by the next;
* a GEMM is a library's: its epilogue is a pass of its own, which reads the GEMM's result and writes another.
"""

from __future__ import annotations

from auditor.engine.costs import KernelCost, SiteCost
from auditor.engine.roofline import SOFTMAX
from auditor.graph.ops import kind_of

VENDOR_F32 = frozenset(
    f"aten.{name}" for name in ("exp", "tanh", "erf", "log", "log1p", "log2", "log10", "sin", "cos", "gelu", "pow")
)
"""Eager float32 ops that call a vendor's vector library: what they take says nothing of the compiler's library."""

CONCATENATIONS = frozenset({"aten.cat", "aten.stack"})


def spilled(site: SiteCost) -> tuple[int, int]:
    """Bytes (read, written) that compiled CPU code moves beyond the site's inputs and outputs."""
    read = written = 0
    for kernel in site.kernels[:-1]:  # what the last one writes is the output itself
        if kernel.plain in CONCATENATIONS:
            read += kernel.bytes_read + kernel.bytes_written
            written += kernel.bytes_written
    if site.family == "epilogue":
        result = sum(kernel.bytes_written for kernel in site.kernels if kernel.is_gemm)
        read, written = read + result, written + min(result, site.bytes_written_fused)
    buffers = sum(4 * k.numel for k in site.kernels if k.plain in SOFTMAX)
    return read + buffers + _middle_outputs(site), written + buffers


def shows_arithmetic(kernel: KernelCost) -> bool:
    """Whether the eager op calls the same functions as compiled code, so that its time tells what they take."""
    return not (kernel.op in VENDOR_F32 and kernel.dtype == "f32")


def _middle_outputs(site: SiteCost) -> int:
    if not any(kind_of(k.plain) in ("reduction", "norm") and k.plain not in SOFTMAX for k in site.kernels):
        return 0
    return max(0, site.bytes_written_fused - site.kernels[-1].bytes_written)
