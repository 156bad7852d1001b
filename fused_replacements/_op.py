"""What a fused op is: a definition in plain PyTorch, a Triton launcher, and an ``autograd.Function`` around both.

``torch.library.custom_op`` with ``register_autograd`` costs 19 to 25 µs a call, a function around an op that is defined
by hand 2 to 6.

The backward is an op too. Unless a definition of it is given, it is derived: the gradient of the reference with
respect to its inputs, traced and compiled as one graph. Ops therefore keep their inputs for backward and recompute
row statistics there, which costs arithmetic but no memory traffic, as the row is read anyway. An op that would have
to read its input twice for that (cross entropy, attention) returns the statistics as further outputs, ``saved``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as transforms_active
from torch.autograd import forward_ad

from fused_replacements._compiled import Argument, Definition, leaves
from fused_replacements._dispatched import TENSOR_TYPES, Composed, Kernels, Op
from fused_replacements._paths import HAVE_TRITON, say_unfused

MOST_PATTERNS = 1024
"""Of outputs that are read and shapes for which an op remembers what gets no gradient."""


class FusedOp:
    """A differentiable fused op: ``op(*arguments)`` returns the public outputs of its definition.

    Args:
        schema: ``name(Tensor x, Tensor? weight, float eps) -> Tensor``. Returns: one tensor, or a tuple of them.
        reference: the definition, of exactly these arguments. It returns as many tensors as the schema says.
        forward, backward: the Triton side. ``backward`` gets ``(grads of every public output or None, then the
            arguments, then the saved outputs, then needs)`` and returns the gradients that ``needs`` asks for.
        saved: how many of the last outputs are statistics for backward. The caller doesn't see them, and they have
            no gradient.
        gradient: a definition of backward, with the arguments of ``backward`` above; derived from the reference
            if it isn't given.
        output_for: the tensor argument that backward does without. In its place ``gradient`` and ``backward`` get
            the op's one output, so that the argument can be freed (softmax). ``gradient`` must then be given, and be
            differentiable.
        added: the tensor argument that is added to the one public output last (a residual, of its shape): its
            gradient is the incoming one itself, it isn't kept, and the backward op gets None in its place.
        keeps_outputs: backward gets the public outputs as well, before the saved ones (attention). There must be
            some saved ones.
        misfit: of the op's arguments, what ``supports`` says about shapes that don't fit, or None. It is asked where
            the definition raises, at shapes that are new to the compiled kernels, and before a GPU kernel runs, which
            looks at no size. What doesn't fit is left to the definition, which may broadcast it.
        discrete: the tensor arguments that may hold integers or truth values: masks, indices, packed weights. All
            others must be floating and on one device, else the call raises TypeError.
        exact: what doesn't fit raises, as the definition would take it for something else.

    Every tensor argument that is not in ``constant`` can have a gradient. Differentiating twice, ``torch.func``
    transforms and forward-mode differentiation go through the reference: right, but unfused.
    """

    def __init__(
        self,
        schema: str,
        reference: Definition,
        *,
        forward: Kernels | Composed | None = None,
        backward: Kernels | Composed | None = None,
        saved: int = 0,
        gradient: Definition | None = None,
        constant: Sequence[str] = (),
        output_for: str | None = None,
        added: str | None = None,
        keeps_outputs: bool = False,
        misfit: Callable[..., str | None] | None = None,
        exact: bool = False,
        discrete: Sequence[str] = (),
    ) -> None:
        self.reference = reference
        self.constant = tuple(constant)
        self.forward = Op(schema, reference, forward, misfit=misfit, exact=exact)
        self.name = self.forward.name
        arguments = self.forward.schema.arguments
        self._tensors = tuple(i for i, a in enumerate(arguments) if str(a.type) in TENSOR_TYPES[:2])
        if any(str(a.type) == TENSOR_TYPES[2] for a in arguments):
            raise ValueError(f"{schema}: a list of tensors has no gradient here; name the tensors one by one")
        self._learned = tuple(i for i in self._tensors if arguments[i].name not in (*constant, added))
        self._added = next((i for i, a in enumerate(arguments) if a.name == added), None)
        self._differentiable = self._learned if self._added is None else (*self._learned, self._added)
        self.forward.floating = [i for i in self._tensors if arguments[i].name not in discrete]
        self.outputs = len(self.forward.schema.returns) - saved
        self.saved = saved
        self.kept = saved + (self.outputs if keeps_outputs else 0)
        self._replaced = next((i for i, a in enumerate(arguments) if a.name == output_for), None)
        fake = self._fake_gradient if self._replaced is None else None  # the output's dtype may not be the argument's
        self.backward = Op(self._backward_schema(), gradient or self._derived_gradient, backward, fake)
        self._unreached: dict[tuple[object, ...], Sequence[int]] = {}
        self.bind(_function(self))

    def bind(self, function: type[torch.autograd.Function]) -> None:
        """Let calls that learn go through ``function``: an op that keeps less than its inputs brings its own."""
        self._function = function
        self._apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]

    def __call__(self, *arguments: Argument) -> Any:
        if transforms_active() or forward_ad._current_level >= 0:
            return self._transformed(arguments)
        if torch.compiler.is_compiling():
            learns = torch.is_grad_enabled() and self._wants_gradient(arguments)
            outputs = self._function.apply(*_distinct(arguments)) if learns else self.forward.overload(*arguments)
            return self._public(outputs)
        learns = False
        try:
            if torch.is_grad_enabled():
                for i in self._differentiable:  # as _wants_gradient, whose call would cost as much again
                    if arguments[i] is not None and arguments[i].requires_grad:
                        learns = True
                        break
            # Function.apply in Python looks for transforms, which are out already, and costs 2 µs
            outputs = self._apply(*arguments) if learns else self.forward.overload(*arguments)
        except (AttributeError, NotImplementedError, RuntimeError):
            if (reason := self.forward.foreign(arguments)) is not None:
                raise TypeError(reason) from None
            raise
        return self._public(outputs) if self.saved else outputs

    def _transformed(self, arguments: Sequence[Argument]) -> Any:
        """A transform (vmap, jvp, hessian) and a tangent need rules that only the reference's own ops have."""
        if not torch.compiler.is_compiling():
            say_unfused(self.name, "it is called inside a torch.func transform, or in forward-mode differentiation")
        return self._public(self.reference(*arguments))

    def refuses(self, *arguments: Argument) -> str | None:
        """Why the Triton kernels can't take these arguments where they are, or None. On a CPU they are not used.

        Backward is asked too where an argument requires a gradient, with None for gradients and saved outputs.
        """
        tensors = leaves(arguments)
        if (reason := self.forward.foreign(arguments)) is not None:
            return reason
        if not tensors or tensors[0].device.type == "cpu":
            return None
        if self.forward.composed is not None:
            return None  # the ops that it is made of answer for themselves
        if not HAVE_TRITON:
            return "triton is not installed"
        reason = self.forward.kernels.refuses(*arguments) if self.forward.kernels else "it has no Triton kernel"
        if self.backward.kernels is None or not torch.is_grad_enabled():
            return reason
        if reason is None and self._wants_gradient(arguments):
            needs = [arguments[i] is not None and arguments[i].requires_grad for i in self._learned]
            reason = self.backward.kernels.refuses(*[None] * self.outputs, *arguments, *[None] * self.kept, needs)
        return reason

    def _public(self, outputs: Any) -> Any:
        if not self.saved:
            return outputs
        return outputs[0] if self.outputs == 1 else outputs[: self.outputs]

    def _wants_gradient(self, arguments: Sequence[Argument]) -> bool:
        return any(arguments[i] is not None and arguments[i].requires_grad for i in self._differentiable)

    def _backward_schema(self) -> str:
        declared = str(self.forward.schema)
        inside = declared[declared.index("(") + 1 : declared.rindex(") ->")]
        grads = ", ".join(f"Tensor? grad{i}" for i in range(self.outputs))
        saved = "".join(f", Tensor saved{i}" for i in range(self.kept))
        return f"{self.name}_backward({grads}, {inside}{saved}, bool[] needs) -> Tensor[]"

    def split(self, arguments: Sequence[Argument]) -> tuple[list[Argument], list[Argument], list[Argument], list[bool]]:
        """The arguments of the backward op: gradients of the outputs, arguments of the op, saved outputs, needs."""
        count = len(self.forward.schema.arguments)
        grads, rest = list(arguments[: self.outputs]), list(arguments[self.outputs :])
        return grads, rest[:count], rest[count:-1], list(rest[-1])

    def _derived_gradient(self, *arguments: Argument) -> list[Tensor]:
        grads, inputs, _, needs = self.split(arguments)
        return list(self.gradients(grads, [i.detach() if isinstance(i, Tensor) else i for i in inputs], needs, False))

    def _fake_gradient(self, *arguments: Argument) -> list[Tensor]:
        _, inputs, _, needs = self.split(arguments)
        wanted = [inputs[i] for i, need in zip(self._learned, needs, strict=True) if need]
        return [tensor.new_empty(tensor.shape) for tensor in wanted]

    def gradients(
        self, grads: Sequence[Tensor | None], inputs: list[Argument], needs: Sequence[bool], create_graph: bool
    ) -> list[Tensor]:
        """Gradients through the reference for the learned inputs that ``needs`` marks, in order."""
        wanted = [i for i, need in zip(self._learned, needs, strict=True) if need]
        with torch.enable_grad():
            for i in wanted:
                if not inputs[i].requires_grad:
                    inputs[i] = inputs[i].detach().requires_grad_()
            outputs = self._public(self.reference(*inputs))
            outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
            given = [(o, grad.to(o.dtype)) for o, grad in zip(outputs, grads, strict=True) if grad is not None]
            found = torch.autograd.grad(
                [output for output, _ in given],
                [inputs[i] for i in wanted],
                [grad for _, grad in given],
                allow_unused=True,
                create_graph=create_graph,
            )
        return [
            torch.zeros_like(inputs[i], memory_format=torch.contiguous_format) if grad is None else grad
            for i, grad in zip(wanted, found, strict=True)
        ]

    def unreached(self, used: Sequence[bool], inputs: Sequence[Argument]) -> Sequence[int]:
        """The learned inputs that none of the ``used`` outputs depends on: eager leaves them without a gradient.

        An optimizer passes over what has none, and decays what has zeros. Found out once, on tensors without memory.
        """
        key = (*used, *(tuple(i.shape) if isinstance(i, Tensor) else repr(i) for i in inputs))
        if key not in self._unreached:
            if len(self._unreached) >= MOST_PATTERNS:
                self._unreached.clear()
            self._unreached[key] = self._without_path(used, inputs)
        return self._unreached[key]

    def _without_path(self, used: Sequence[bool], inputs: Sequence[Argument]) -> Sequence[int]:
        shapes = [i.detach().to("meta") if isinstance(i, Tensor) else i for i in inputs]
        learned = [i for i in self._learned if isinstance(shapes[i], Tensor) and shapes[i].is_floating_point()]
        try:
            with torch.enable_grad():
                for i in learned:
                    shapes[i].requires_grad_()
                outputs = self._public(self.reference(*shapes))
                reached = [o.sum() for o, use in zip(outputs, used, strict=True) if use and o.requires_grad]
                if not reached:
                    return learned
                found = torch.autograd.grad(reached, [shapes[i] for i in learned], allow_unused=True)
        except (RuntimeError, NotImplementedError, TypeError, ValueError):  # no meta form, complex numbers: zeros stay
            return []
        return [i for i, grad in zip(learned, found, strict=True) if grad is None]

    def scatter(self, gradients: Sequence[Tensor], needs: Sequence[bool]) -> tuple[Tensor | None, ...]:
        """One entry for each argument of the op, as ``autograd.Function`` wants them."""
        result: list[Tensor | None] = [None] * len(self.forward.schema.arguments)
        rest = iter(gradients)
        for i, need in zip(self._learned, needs, strict=True):
            if need:
                result[i] = next(rest)
        return tuple(result)


def _distinct(arguments: Sequence[Argument]) -> list[Argument]:
    """``arguments`` with a view in place of a tensor that comes again, which Dynamo takes in no ``Function``."""
    seen: list[Tensor] = []
    distinct: list[Argument] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            if any(argument is other for other in seen):
                argument = argument.view_as(argument)
            seen.append(argument)
        distinct.append(argument)
    return distinct


def _function(op: FusedOp) -> type[torch.autograd.Function]:
    """The ``autograd.Function`` around an op.

    ``ctx`` is an argument of forward: with ``setup_context`` PyTorch inspects a signature at every call, for 20 µs.
    """
    tensors, learned, count = op._tensors, op._learned, len(op.forward.schema.arguments)
    replaced, added = op._replaced, op._added
    constants = tuple(i for i in range(count) if i not in tensors)
    places = [(*tensors, *constants).index(i) for i in range(count)]  # of each argument in what is kept
    run, run_backward, outputs_seen = op.forward.overload, op.backward.overload, op.outputs
    simple = replaced is None and added is None and not op.kept

    def forward(ctx: Any, *arguments: Argument) -> Any:
        outputs = run(*arguments)
        ctx.set_materialize_grads(False)
        ctx.constants = [arguments[i] for i in constants]
        if simple:  # most ops; this path is the cost of every call that learns
            ctx.save_for_backward(*[arguments[i] for i in tensors])
            return outputs
        extra = outputs[outputs_seen:] if op.saved else ()
        if extra:
            ctx.mark_non_differentiable(*extra)
        kept = [None if i == added else outputs if i == replaced else arguments[i] for i in tensors]
        ctx.save_for_backward(*kept, *(outputs if op.kept > op.saved else extra))
        return outputs

    def backward(ctx: Any, *all_grads: Tensor | None) -> tuple[Tensor | None, ...]:
        grads, wanted = all_grads[:outputs_seen], ctx.needs_input_grad
        result: list[Tensor | None] = [None] * count
        if grads[0] is None and all(grad is None for grad in grads):
            return tuple(result)
        into = [i for i in learned if wanted[i]]
        if into:
            kept = ctx.saved_tensors  # read once: a checkpoint lets go of them then
            given = [*kept[: len(tensors)], *ctx.constants]
            inputs = [given[i] for i in places]
            found = computed(grads, inputs, kept[len(tensors) :], [wanted[i] for i in learned])
            for i, gradient in zip(into, found, strict=True):
                result[i] = gradient
            if outputs_seen > 1 and any(grad is None for grad in grads):
                for i in op.unreached([grad is not None for grad in grads], inputs):
                    result[i] = None
        if added is not None and wanted[added]:
            result[added] = grads[0]
        return tuple(result)

    def computed(
        grads: Sequence[Tensor | None], inputs: list[Argument], saved: Sequence[Tensor], needs: list[bool]
    ) -> Sequence[Tensor]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # create_graph: to be differentiated again
            if replaced is not None:
                return op.backward.definition(*grads, *inputs, needs)  # type: ignore[no-any-return]
            return op.gradients(grads, list(inputs), needs, create_graph=True)
        return run_backward(*grads, *inputs, *saved, needs)  # type: ignore[no-any-return]

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(f"{op.name}_function", (torch.autograd.Function,), members)
