"""What the registry promises to a patcher: names, signatures, lazy imports, a machine without Triton, providers."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.utils._pytree import tree_map

import fused_replacements
from fused_replacements import Provider, Replacement, Sample, _registry
from fused_replacements._registry import HOME, PROVIDERS_GROUP, find, providers

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "fused_replacements"
each_name = pytest.mark.parametrize("name", HOME)


def samples(name: str, rows: int = 4, width: int = 64) -> list[Sample]:
    return list(find(name).samples(rows, width, torch.float32, torch.device("cpu")))


def python(code: str) -> str:
    """What ``code`` prints in a process of its own, where warnings are errors."""
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_replacement_that_a_rule_names_is_there() -> None:
    named = {
        path.name: rule["replacement"]
        for path in sorted((ROOT / "rules").glob("*.yaml"))
        if (rule := yaml.safe_load(path.read_text(encoding="utf-8"))).get("replacement")
    }
    assert len(named) >= 10
    assert {file: name for file, name in named.items() if name not in HOME} == {}


def test_every_module_of_a_family_is_listed_and_the_other_way_round() -> None:
    families = set(HOME.values())
    modules = [path for path in PACKAGE.glob("*/*.py") if path.parent.name in families]
    defining = [path for path in modules if "\nREPLACEMENT = " in path.read_text(encoding="utf-8")]
    assert {(path.stem, path.parent.name) for path in defining} == set(HOME.items())


@each_name
def test_module_defines_the_replacement_of_its_name(name: str) -> None:
    module = importlib.import_module(f"fused_replacements.{HOME[name]}.{name}")
    replacement = module.REPLACEMENT
    assert isinstance(replacement, Replacement)
    assert (replacement.name, replacement.family) == (name, HOME[name])
    assert find(name) is replacement
    assert getattr(fused_replacements, name) is replacement.function
    assert replacement.function.__module__ == module.__name__
    assert replacement.doc == module.__doc__


@each_name
def test_function_reference_and_supports_take_the_same_arguments(name: str) -> None:
    def taken(function: Callable[..., Any]) -> list[tuple[str, object, object]]:
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    replacement = find(name)
    assert taken(replacement.reference) == taken(replacement.function)
    assert taken(replacement.supports) == taken(replacement.function)


@each_name
def test_samples_are_legal_calls_with_labels_of_their_own(name: str) -> None:
    found = samples(name)
    assert found or HOME[name] == "optimizer"  # it takes no tensors, and its tests make optimizers
    assert len({sample.label for sample in found}) == len(found)
    for sample in found:
        inspect.signature(find(name).function).bind(*sample.args, **sample.kwargs)


@each_name
def test_supports_answers_for_every_sample_without_reading_a_value(name: str) -> None:
    def to_meta(leaf: object) -> object:
        return leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf

    for sample in samples(name):
        assert find(name).supports(*sample.args, **sample.kwargs) is None, sample.label
        args, kwargs = tree_map(to_meta, (sample.args, dict(sample.kwargs)))
        answer = find(name).supports(*args, **kwargs)
        assert answer is None or isinstance(answer, str)


@each_name
def test_providers_start_with_this_library(name: str) -> None:
    offered = providers(name)
    assert offered[0] == Provider("triton", find(name).function, find(name).supports)
    assert len({provider.name for provider in offered}) == len(offered)
    for sample in samples(name):
        for provider in offered:
            answer = provider.supports(*sample.args, **sample.kwargs)
            assert answer is None or (isinstance(answer, str) and answer), (provider.name, sample.label)


def test_all_is_the_public_surface() -> None:
    assert sorted(fused_replacements.__all__) == dir(fused_replacements)
    assert len(set(fused_replacements.__all__)) == len(fused_replacements.__all__)
    assert set(HOME) < set(fused_replacements.__all__)
    assert all(getattr(fused_replacements, name) is not None for name in fused_replacements.__all__)


def test_an_unknown_name_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'rms_norms'"):
        _ = fused_replacements.rms_norms
    with pytest.raises(KeyError, match="no replacement is called 'rms_norms'; there are rms_norm, "):
        find("rms_norms")


NEW_MODULES = """
import sys, torch
before = set(sys.modules)
import fused_replacements
{use}
heavy = ("triton", "torch._inductor", "torch._dynamo", "fused_replacements.kernels")
print(*sorted(name for name in set(sys.modules) - before if name.startswith(heavy)))
"""


def test_importing_the_library_imports_neither_triton_nor_the_compiler() -> None:
    assert python(NEW_MODULES.format(use="")).split() == []


def test_looking_at_every_replacement_imports_neither_triton_nor_the_compiler() -> None:
    use = "[replacement.doc for replacement in fused_replacements.replacements()]"
    assert python(NEW_MODULES.format(use=use)).split() == []


def test_only_the_replacement_that_is_used_is_imported() -> None:
    code = "import sys, fused_replacements; fused_replacements.rms_norm; print(*sys.modules)"
    loaded = {name for name in python(code).split() if name.startswith("fused_replacements.")}
    assert "fused_replacements.reduction.rms_norm" in loaded
    assert {name.split(".")[1] for name in loaded} & (set(HOME.values()) - {"reduction"}) == set()


WITHOUT_TRITON = """
import sys
from importlib.machinery import PathFinder

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.split(".")[0] == "triton" else PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [Finder if finder is PathFinder else finder for finder in sys.meta_path]

import warnings
import torch
import fused_replacements as library
"""


def test_without_triton_every_replacement_runs_as_its_reference() -> None:
    code = f"""{WITHOUT_TRITON}
assert not library.HAVE_TRITON
with library.cpu_path("reference"):
    for replacement in library.replacements():
        for sample in replacement.samples(3, 64, torch.float32, torch.device("cpu")):
            replacement.function(*sample.args, **sample.kwargs)
        print(replacement.name)
assert not any(name.split(".")[0] == "triton" for name in sys.modules)
"""
    assert python(code).split() == list(HOME)


def test_without_triton_the_compiled_path_works_and_the_triton_path_says_why_not() -> None:
    code = f"""{WITHOUT_TRITON}
torch.manual_seed(0)
x, weight = torch.randn(3, 64, requires_grad=True), torch.randn(64, requires_grad=True)
warnings.simplefilter("error", library.Unfused)
found = library.rms_norm(x, weight)
grads = torch.autograd.grad(found.square().sum(), (x, weight))
wanted = library.find("rms_norm").reference(x, weight)
torch.testing.assert_close(found, wanted)
torch.testing.assert_close(grads, torch.autograd.grad(wanted.square().sum(), (x, weight)))
assert library.find("rms_norm").ops[0].forward.compiled.built == 1
with library.cpu_path("triton"), warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    torch.testing.assert_close(library.rms_norm(x.detach(), weight.detach()), wanted.detach())
print(*(f"{{w.category.__name__}}: {{w.message}}" for w in said), sep="\\n")
"""
    assert python(code).strip() == "Unfused: rms_norm runs unfused, as its reference: triton is not installed"


def install(folder: Path, distribution: str, module: str, source: str, points: str) -> None:
    """A package as pip leaves it behind: a module, and metadata with entry points."""
    (folder / f"{module}.py").write_text(source, encoding="utf-8")
    info = folder / f"{distribution}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{PROVIDERS_GROUP}]\n{points}\n", encoding="utf-8")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


PROVIDER = """
from fused_replacements import Provider

def supports(x, weight=None, eps=1e-6, **options):
    return "it has no gate" if options.get("gate") is not None else None

def rms_norm(x, weight=None, eps=1e-6, **options):
    return x

KERNEL = Provider("acme", rms_norm, supports)
"""


def test_an_installed_package_offers_a_provider(site: Path) -> None:
    install(site, "acme-kernels", "acme_kernels", PROVIDER, "rms_norm = acme_kernels:KERNEL")
    try:
        offered = providers("rms_norm")
        assert offered[-1].name == "acme"
        assert offered[-1].supports(torch.ones(2, 4), gate=torch.ones(2, 4)) == "it has no gate"
        assert "acme" not in [provider.name for provider in providers("softmax")]
    finally:
        sys.modules.pop("acme_kernels", None)


def test_a_provider_of_an_unknown_replacement_is_told_once(site: Path) -> None:
    _registry._warn_of_unknown_names.cache_clear()
    install(site, "acme-kernels", "acme_kernels", PROVIDER, "rms_norms = acme_kernels:KERNEL")
    try:
        with pytest.warns(RuntimeWarning, match="acme_kernels:KERNEL .* no replacement is called 'rms_norms'") as said:
            providers("softmax")
        assert len(said) == 1
        providers("softmax")  # no second time: warnings are errors
    finally:
        _registry._warn_of_unknown_names.cache_clear()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("raise RuntimeError('wants CUDA 99')", "RuntimeError: wants CUDA 99"),
        ("import a_module_that_is_not_there", "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
        ("", "AttributeError: module 'broken_kernels' has no attribute 'KERNEL'"),
        ("KERNEL = 'a string'", "it is a str, not a fused_replacements.Provider"),
    ],
    ids=["raises", "lacks a dependency", "lacks the object", "another type"],
)
def test_a_broken_provider_is_left_out_with_a_warning(site: Path, source: str, says: str) -> None:
    before = providers("rms_norm")
    install(site, "broken-kernels", "broken_kernels", source, "rms_norm = broken_kernels:KERNEL")
    try:
        with pytest.warns(RuntimeWarning) as said:
            assert providers("rms_norm") == before
        assert [str(warning.message) for warning in said] == [
            f"the provider broken_kernels:KERNEL of fused replacements is left out: {says}"
        ]
    finally:
        sys.modules.pop("broken_kernels", None)
