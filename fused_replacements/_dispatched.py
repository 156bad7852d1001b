"""One op of PyTorch's dispatcher: defined by ``torch.library``, it picks what runs where it is called.

Defined so (define, impl, fake) the profiler shows it, ``torch.compile`` keeps it whole and the dispatcher routes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor

from fused_replacements._compiled import Argument, CompiledKernels, Definition, leaves, reason_of
from fused_replacements._paths import HAVE_TRITON, Chosen, note_unfused, say_unfused
from fused_replacements._tensors import foreign, tensor_places

NAMESPACE: Final = "fused_replacements"
_library: Final = torch.library.Library(NAMESPACE, "FRAGMENT")
_TAGS: Final = (torch.Tag.pt2_compliant_tag,)
_AUTOGRAD_KEYS: Final = (
    torch._C.DispatchKey.AutogradCPU,
    torch._C.DispatchKey.AutogradCUDA,
    torch._C.DispatchKey.AutogradXPU,
    torch._C.DispatchKey.ADInplaceOrView,
)
TENSOR_TYPES: Final = ("Tensor", "Optional[Tensor]", "List[Tensor]")


@dataclass(frozen=True)
class Kernels:
    """The Triton side of one op: functions of ``fused_replacements.kernels.<module>``, imported at the first launch.

    The launcher takes the op's arguments and returns newly allocated, contiguous outputs. ``refuses`` takes the same
    and says why the kernel can't (a stride, a width), or returns None.
    """

    module: str
    launcher: str
    refusal: str = "refuses"
    cpu: Definition | None = None
    """What a CPU runs where the compiled definition would need too much memory: Python over other ops."""

    @property
    def launch(self) -> Callable[..., Any]:
        return self._load(self.launcher)

    @property
    def refuses(self) -> Callable[..., str | None]:
        return self._load(self.refusal)

    def _load(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(import_module(f"fused_replacements.kernels.{self.module}"), name)
        return found


@dataclass(frozen=True)
class Composed:
    """An implementation in Python over other ops, for what no single kernel can hold: it runs on every device.

    It takes the op's arguments and returns newly allocated, contiguous outputs. Autocast is off inside.
    """

    function: Definition


class Op:
    """One op of the dispatcher: where it runs, what it returns, how often it ran."""

    def __init__(
        self,
        schema: str,
        definition: Definition,
        implementation: Kernels | Composed | None,
        fake: Definition | None = None,
        misfit: Callable[..., str | None] | None = None,
        exact: bool = False,
    ) -> None:
        self.name = schema.split("(", 1)[0]
        self._misfit, self._exact = misfit, exact
        self.schema = torch._C.parse_schema(schema)
        self.definition = definition
        self.kernels = implementation if isinstance(implementation, Kernels) else None
        self.composed = implementation if isinstance(implementation, Composed) else None
        self.on_cpu = Composed(self.kernels.cpu) if self.kernels is not None and self.kernels.cpu is not None else None
        self._tensor_places = tensor_places(self.schema)
        self.floating: Sequence[int] = ()
        """Places of the tensors that must be floating, and on one device."""
        self.compiled = CompiledKernels(definition, len(self.schema.arguments), misfit=misfit, examine=self.examine)
        self.calls = 0
        """How often it ran since import, under ``torch.compile`` too: "patched" can be told from "called"."""
        self.single = len(self.schema.returns) == 1
        self.is_list = self.single and str(self.schema.returns[0].type) == "List[Tensor]"
        types = [str(argument.type) for argument in self.schema.arguments]
        self._places = None if TENSOR_TYPES[2] in types else [i for i, kind in enumerate(types) if kind in TENSOR_TYPES]
        self._only_compiled = self.composed is None and self.on_cpu is None
        _library.define(schema, tags=_TAGS)
        for key in ("CPU", "CUDA", "XPU"):
            _library.impl(self.name, self._on_cpu if key == "CPU" else self._on_gpu, key)
        torch.library.register_fake(f"{NAMESPACE}::{self.name}", fake or self._fake, lib=_library)
        self.overload: Final = getattr(getattr(torch.ops, NAMESPACE), self.name).default

    def _on_cpu(self, *arguments: Argument) -> Any:
        self.calls += 1
        path = Chosen.cpu
        if path == "compiled" and self._only_compiled:
            return self.run_compiled(arguments)
        if self.composed is not None and path != "reference":
            return self._run_composed(self.composed, arguments)
        if path == "compiled":
            assert self.on_cpu is not None
            return self._run_composed(self.on_cpu, arguments)
        if path == "triton":
            return self._run_triton(arguments)
        return self.run_reference(arguments)

    def _on_gpu(self, *arguments: Argument) -> Any:
        self.calls += 1
        if self.composed is not None:
            return self._run_composed(self.composed, arguments)
        return self._run_triton(arguments)

    def foreign(self, arguments: Sequence[Argument]) -> str | None:
        """Why it can't be called with these at all, or None: see ``_tensors``."""
        return foreign(self._tensor_places, arguments, self.floating)

    def examine(self, arguments: Sequence[Argument]) -> None:
        """Raises TypeError where an argument is no tensor that an op could take."""
        if (reason := self.foreign(arguments)) is not None:
            raise TypeError(reason)

    def _whole_numbers(self, arguments: Sequence[Argument]) -> bool:
        """Whether ``foreign`` has anything to say about dtypes: asked often, of calls whose layouts are known."""
        for place in self.floating:
            tensor = arguments[place]
            if tensor is not None and not tensor.is_floating_point():
                return True
        return False

    def _run_composed(self, composed: Composed, arguments: Sequence[Argument]) -> Any:
        if self._whole_numbers(arguments):
            self.examine(arguments)
        try:
            with autocast_off():
                return composed.function(*arguments)
        except Exception as error:
            raise self.explained(error, arguments) from None

    def misfit(self, arguments: Sequence[Argument]) -> str | None:
        """What about the shapes is not as the op's page says, as ``supports`` puts it; None if nothing."""
        return None if self._misfit is None else self._misfit(*arguments)

    def explained(self, error: Exception, arguments: Sequence[Argument]) -> Exception:
        """``error``, or one sentence in its place where it came of shapes that don't fit."""
        reason = None if isinstance(error, NotImplementedError) else self.misfit(arguments)
        return error if reason is None else ValueError(reason)

    def run_compiled(self, arguments: Sequence[Argument]) -> Any:
        try:
            kernel = self.compiled.find(arguments)
        except Exception as error:  # the compiler raises many kinds: no g++, no headers, an op that it doesn't know
            outputs = self._unfused(f"no kernel could be compiled for this CPU ({reason_of(error)})", arguments)
            self.compiled.give_up(arguments)
            return outputs
        if kernel is None:
            reason = self.misfit(arguments)
            if reason is None:  # warned of when it was tried
                note_unfused(self.name, "no kernel could be compiled for these arguments")
            return self._unfused(reason, arguments)
        outputs = kernel(self._tensors(arguments))
        return list(outputs) if self.is_list else outputs[0] if self.single else tuple(outputs)

    def _tensors(self, arguments: Sequence[Argument]) -> list[Tensor]:
        """The leaves, by their places in the schema; looked for only where an argument is a list of tensors."""
        if self._places is None:
            return leaves(arguments)
        return [tensor for i in self._places if (tensor := arguments[i]) is not None]

    def _run_triton(self, arguments: Sequence[Argument]) -> Any:
        reason = self._refusal(arguments)
        if reason is None:
            assert self.kernels is not None
            return self.kernels.launch(*arguments)
        return self._unfused(reason, arguments)

    def _unfused(self, reason: str | None, arguments: Sequence[Argument]) -> Any:
        """The definition, and then why, if there is a reason: a call that raises needs no second message."""
        outputs = self.run_reference(arguments)
        if reason is not None:
            say_unfused(self.name, reason)
        return outputs

    def _refusal(self, arguments: Sequence[Argument]) -> str | None:
        if not HAVE_TRITON:
            return "triton is not installed"
        if self.kernels is None:
            return "it has no Triton kernel"
        tensors = leaves(arguments)
        if any(tensor.dtype is torch.float64 for tensor in tensors):
            return "fp64 is computed by the reference"
        if self._whole_numbers(arguments):
            return self.foreign(arguments)
        return self.misfit(arguments) or self.kernels.refuses(*arguments)  # kernels don't look at sizes that must fit

    def run_reference(self, arguments: Sequence[Argument]) -> Any:
        """The definition, op by op, with contiguous outputs that alias no input."""
        self.examine(arguments)
        if self._exact and (reason := self.misfit(arguments)) is not None:
            raise ValueError(reason)
        try:
            with above_autograd(), torch.no_grad():
                outputs = self.definition(*arguments)
        except Exception as error:
            raise self.explained(error, arguments) from None
        mine = leaves(arguments)
        if isinstance(outputs, Tensor):
            return _own(outputs, mine)
        owned = [_own(output, mine) for output in outputs]
        return owned if self.is_list else tuple(owned)

    def _fake(self, *arguments: Argument) -> Any:
        self.examine(arguments)
        try:
            with torch.no_grad():
                outputs = self.definition(*arguments)
        except Exception as error:
            raise self.explained(error, arguments) from None
        if isinstance(outputs, Tensor):
            return outputs.new_empty(outputs.shape)
        empty = [output.new_empty(output.shape) for output in outputs]
        return empty if self.is_list else tuple(empty)


@contextmanager
def above_autograd() -> Iterator[None]:
    """The dispatcher as outside of any op: autograd can record again, autocast is off.

    Inside an op's kernel the dispatcher skips autograd, and a derived gradient needs it; autocast is not skipped, and
    would change the dtypes of a definition that fixes its own.
    """
    include, exclude = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for key in _AUTOGRAD_KEYS:
        exclude = exclude.remove(key)
    with torch._C._ForceDispatchKeyGuard(include, exclude), autocast_off():
        yield


@contextmanager
def autocast_off() -> Iterator[None]:
    """No op inside changes the dtype of its arguments."""
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


def _own(output: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    output = output.contiguous()
    owned = all(output.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() for tensor in inputs)
    return output if owned or not output.numel() else output.clone()
