"""Ahead-of-time compilation of a ``KernelCase`` for a GPU that need not be there.

Only for a process in which ``TRITON_INTERPRET`` was not set when the kernels were imported: ``run`` starts such ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fused_replacements.gates.targets import Target

if TYPE_CHECKING:
    from fused_replacements.kernels._launch import KernelCase


def as_at_runtime(kind: str) -> str:
    """The type that Triton gives an argument at a launch: an integer below 2³¹ has 32 bits, whatever holds it.

    The narrow type is the one to compile: a product that overflows does so with it.
    """
    return "i32" if kind == "i64" else kind


def aot(case: KernelCase, target: Target) -> Any:
    """Triton's ``CompiledKernel`` of ``case`` for ``target``; raises what the compiler raises."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = list(case.kernel.arg_names)
    if names != list(case.arguments):
        raise ValueError(f"the kernel takes {', '.join(names)}; the case has {', '.join(case.arguments)}")
    signature, constants = {}, {}
    for parameter in case.kernel.params:
        value = case.arguments[parameter.name]
        if isinstance(value, str) and not parameter.is_constexpr:
            signature[parameter.name] = as_at_runtime(value)
        else:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
    divisible = [name for name, kind in signature.items() if kind.startswith("*") or name in case.aligned]
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in divisible}
    return triton.compile(
        ASTSource(case.kernel, signature, constants, attributes),
        target=GPUTarget(target.backend, target.arch, target.warp_size),
        options={
            "num_warps": case.warps_of(target.warp_size),
            "num_stages": case.stages_of(target.warp_size),
            "enable_fp_fusion": True,
        },
    )
