"""Arguments that make no sense: one sentence, that of ``supports``, and no compiler's text or warning before it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from calls import CPU, NAMES, as_list, mapped, sample_of, tensors, variants
from torch import Tensor

from fused_replacements import Replacement, Sample, _paths, attention, cpu_path, find, flash_attention, sdpa_backend
from fused_replacements._registry import HOME

PYTORCH_SAYS = ("elementwise_chain", "cross_entropy", "linear_cross_entropy")
"""Where PyTorch may say it too: the function is the user's own, or only ``F.cross_entropy`` takes such a call."""


PATHS: tuple[_paths.CpuPath, ...] = ("reference", "compiled")


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_paths, "_said", set())


def grown(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """``sample`` with one dimension of one of its tensors one longer, and with one tensor a dimension short."""
    for place, tensor in enumerate(tensors(sample)):
        shapes = [[size + (i == d) for i, size in enumerate(tensor.shape)] for d in range(tensor.dim())]
        shapes += [list(tensor.shape[1:])] if tensor.dim() > 1 else []
        for shape in shapes:
            others = iter([*tensors(sample)[:place], tensor.new_ones(shape), *tensors(sample)[place + 1 :]])
            changed = mapped(sample, lambda _, others=others: next(others))
            yield f"tensor {place} of {tuple(tensor.shape)} as {tuple(shape)}", changed


def outcome(function: Any, sample: Sample) -> list[torch.Size] | Exception:
    """The shapes of the results, or what was raised."""
    try:
        return [output.shape for output in as_list(function(*sample.args, **sample.kwargs))]
    except Exception as error:  # whatever it is, it is judged
        return error


def complaint(replacement: Replacement, sample: Sample) -> str | None:
    """What is wrong with how ``replacement`` takes ``sample``, or None."""
    reason = replacement.supports(*sample.args, **sample.kwargs)
    wanted = outcome(replacement.reference, sample)
    found = outcome(replacement.function, sample)
    if not isinstance(found, Exception):
        return None if found == wanted else f"the result is {found}, where the definition gives {wanted!r}"
    if type(found) is ValueError and str(found) == reason and "\n" not in reason:
        return None
    if replacement.name in PYTORCH_SAYS and (type(found), str(found)) == (type(wanted), str(wanted)):
        return None
    return f"{found!r}, and supports says {reason!r}"


@pytest.mark.filterwarnings("ignore::fused_replacements.Unfused")
@pytest.mark.parametrize(
    ("name", "label", "path"),
    [(*v, "reference") for v in variants()] + [(*v, "compiled") for v in variants(first_only=True)],
)
def test_shapes_that_do_not_fit_are_refused_in_the_words_of_supports(
    name: str, label: str, path: _paths.CpuPath, capfd: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a call with one size that is wrong, or another call that is right
    replacement, wrong = find(name), []
    for what, sample in grown(sample_of(name, label, 5, 64, torch.float32)):
        if path == "compiled" and replacement.supports(*sample.args, **sample.kwargs) is None:
            continue  # legal, or the user's own function: the other path looks at it, and compiles nothing
        # WHEN it is called, THEN it gives what the definition gives, or says what supports says
        with cpu_path(path):
            problem = complaint(replacement, sample)
        wrong += [f"{what}: {problem}"] if problem else []
    assert not wrong, "\n".join(wrong)
    # AND nothing has been printed: the compiler logs the traceback of what it can't trace
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("name", "label"), variants(first_only=True))
def test_no_warning_precedes_an_error(name: str, label: str) -> None:
    # GIVEN warnings that are errors
    replacement = find(name)
    for what, sample in grown(sample_of(name, label, 5, 64, torch.float32)):
        if isinstance(outcome(replacement.reference, sample), Exception):
            # THEN what is raised is no warning
            assert not isinstance(outcome(replacement.function, sample), Warning), what


def words() -> list[tuple[str, str]]:
    """(replacement, argument) of every argument that takes one of some words."""
    found = []
    for name in NAMES:
        hints = typing.get_type_hints(find(name).function)
        for argument, hint in hints.items():
            kinds = [hint, *typing.get_args(hint)]
            if argument == "activation" or any(typing.get_origin(kind) is typing.Literal for kind in kinds):
                found.append((name, argument))
    return found


@pytest.mark.parametrize(("name", "argument"), words())
@pytest.mark.parametrize("word", ["sideways", False, True, 3])
def test_a_word_that_is_none_of_those_is_refused_in_the_words_of_supports(name: str, argument: str, word: Any) -> None:
    replacement = find(name)
    sample = next(iter(replacement.samples(5, 64, torch.float32, CPU)))
    bound = inspect.signature(replacement.function).bind(*sample.args, **sample.kwargs)
    bound.arguments[argument] = word
    reason = replacement.supports(*bound.args, **bound.kwargs)
    assert reason is not None
    assert repr(word) in reason
    with pytest.raises(ValueError, match=r".") as raised:
        replacement.function(*bound.args, **bound.kwargs)
    assert str(raised.value) == reason


def test_there_are_words_to_test() -> None:
    assert {name for name, _ in words()} >= {"rms_norm", "layer_norm", "cross_entropy", "attention", "flash_attention"}


def heads() -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(1, 2, 5, 8) for _ in range(3))  # type: ignore[return-value]


@pytest.mark.parametrize("function", [attention, flash_attention, sdpa_backend, find("attention").reference])
@pytest.mark.parametrize("causal", [False, True, "lower"])
def test_a_causal_that_names_no_corner_is_refused(function: Any, causal: Any) -> None:
    # False would otherwise be taken for a triangle
    says = f"causal is {causal!r}; it may be 'upper_left' or 'lower_right', use None for none"
    with pytest.raises(ValueError, match=r"causal") as raised:
        function(*heads(), causal=causal)
    assert str(raised.value) == says


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_has_a_key_at_least(window: int) -> None:
    with pytest.raises(ValueError, match=f"window is {window}; it is a number of keys, 1 or more, or None"):
        flash_attention(*heads(), window=window)
    assert "window" in str(find("flash_attention").supports(*heads(), window=window))


@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.parametrize("name", ["int8_linear", "int4_linear"])
@pytest.mark.parametrize("width", [3, 96, 127, 129, 160, 256])
def test_a_packed_weight_of_another_width_is_never_cut_or_padded(name: str, rows: int, width: int) -> None:
    # GIVEN a weight of 128 input features, and x of some more or less
    sample = sample_of(name, find_label(name), 5, 128, torch.float32)
    arguments = (torch.randn(rows, width), *sample.args[1:])
    fits = name == "int4_linear" and width == 127  # within the last group, which is padded
    assert (find(name).supports(*arguments) is None) == fits
    for path in PATHS:
        with cpu_path(path):
            says = pytest.raises(ValueError, match=f"the rows of x have {width} elements")
            with nullcontext() if fits else says:
                find(name).function(*arguments)
    with nullcontext() if fits else pytest.raises((ValueError, RuntimeError)):
        find(name).reference(*arguments)


def find_label(name: str) -> str:
    return {"int4_linear": "groups of 32", "int8_linear": "symmetric"}[name]


@pytest.mark.parametrize("grad", [False, True])
def test_int4_groups_of_no_size_are_refused(grad: bool) -> None:
    x = torch.randn(9, 128, requires_grad=grad)
    packed, scale = torch.zeros(4, 64, dtype=torch.uint8), torch.ones(4, 8)
    for rows in (1, 9):
        with pytest.raises(ValueError, match="128 input features in 8 groups make no groups of 32, 64, 128"):
            find("int4_linear").function(x[:rows], packed, scale)


@pytest.mark.parametrize("seed", [3, torch.zeros(2, dtype=torch.int64), torch.zeros(())])
def test_a_seed_is_one_integer_in_a_tensor(seed: Any) -> None:
    x = torch.randn(3, 8)
    with pytest.raises(ValueError, match="it is an int64 tensor of one element, or None"):
        find("dropout_add").function(x, x, 0.1, seed=seed)
    assert "int64 tensor of one element" in str(find("dropout_add").supports(x, x, 0.1, seed=seed))


def test_a_module_is_no_optimizer() -> None:
    with pytest.raises(ValueError, match=r"a Linear is no torch\.optim\.Optimizer"):
        find("fused_optimizer").function(torch.nn.Linear(2, 2))
    assert find("fused_optimizer").supports(torch.nn.Linear(2, 2)) == "a Linear is no torch.optim.Optimizer"


def test_a_vector_that_broadcasts_is_right_and_said_to_be_unfused() -> None:
    # GIVEN a weight of one element, which eager code broadcasts, and no kernel
    x, weight = torch.randn(4, 33), torch.randn(1)
    with pytest.warns(_paths.Unfused, match=r"weight has shape \(1,\), and the rows of x have 33 elements"):
        found = find("rms_norm").function(x, weight)
    torch.testing.assert_close(found, find("rms_norm").reference(x, weight))


def test_every_replacement_is_looked_at() -> None:
    assert {name for name, _ in variants()} == set(HOME) - {"fused_optimizer"}
