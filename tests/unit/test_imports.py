"""The order of the rooms: data flows one way, and nothing on the left imports anything on its right."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import auditor

ROOT = Path(__file__).resolve().parents[2]

ORDER = (
    ("errors", "document", "frames", "toml_lines", "commit", "project"),
    ("fix_document", "gate_document", "budget"),
    ("config", "graph"),
    ("kernels",),
    ("collect",),
    ("devices",),
    ("engine",),
    ("measuring",),
    ("patching",),
    ("report", "selection", "store"),
    ("audit", "api", "session"),
    ("stored",),
    ("fix", "ranks"),
    ("client", "doctor", "tracking"),
    ("gate",),
    ("cli", "testing", "integrations"),
    ("__main__",),
)
"""Rooms of ``auditor`` from left to right. Rooms of one group don't import each other, but for the public face."""

FACE = {"audit", "api", "session"}
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
HEAVY = {
    "torch",
    "triton",
    "pandas",
    "numpy",
    "pyarrow",
    "sqlalchemy",
    "alembic",
    "dash",
    "plotly",
    "yaml",
    "jsonschema",
    "fastapi",
    "uvicorn",
    "huey",
}


def modules() -> list[Path]:
    return sorted(path for path in (ROOT / "auditor").rglob("*.py") if path != ROOT / "auditor" / "__init__.py")


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "auditor").parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a module imports, functions and TYPE_CHECKING blocks included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: import by full name, so that the room can be seen"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def test_every_room_has_its_place() -> None:
    assert {room_of(path) for path in modules()} <= set(RANK)


def test_no_room_imports_one_to_its_right() -> None:
    wrong = []
    for path in modules():
        room = room_of(path)
        for line, name in imported(path):
            parts = name.split(".")
            if parts[0] != "auditor" or parts[1] in (room, "__version__"):
                continue
            target = parts[1]
            # `from auditor import Audit`: through the public face, from wherever that name is at home
            target = auditor._HOME.get(target, f"auditor.{target}").split(".")[1]
            allowed = RANK[target] < RANK[room] or {target, room} <= FACE
            if not allowed:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {room} imports {name}")
    assert wrong == []


@pytest.mark.parametrize("folder", ["dashboard", "tests", "benchmarks", "examples"])
def test_the_package_imports_nothing_from(folder: str) -> None:
    found = {path for path in modules() for _, name in imported(path) if name.split(".")[0] == folder}
    # The one door: `fusion-audit serve` starts the service, and imports it when it is run
    door = {ROOT / "auditor" / "cli" / "serve.py"} if folder == "dashboard" else set()
    assert found == door


def test_replacements_are_a_library_of_their_own() -> None:
    # torch (whose sizes are sympy's) and triton: a model can import a kernel without the auditor and what it needs
    allowed = {"torch", "sympy", "triton", "fused_replacements", *sys.stdlib_module_names}
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in (ROOT / "fused_replacements").rglob("*.py")
        for line, name in imported(path)
        if name.split(".")[0] not in allowed
    ]
    assert found == []


def test_triton_is_imported_by_kernels_and_gates_only() -> None:
    # It is absent on macOS and Windows; the rest of the library works there
    rooms = {"kernels", "gates"}
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in (ROOT / "fused_replacements").rglob("*.py")
        if path.relative_to(ROOT / "fused_replacements").parts[0] not in rooms
        for line, name in imported(path)
        if name.split(".")[0] == "triton" or name.startswith("fused_replacements.kernels")
    ]
    assert found == []


def test_all_is_the_public_surface() -> None:
    # Everything that __all__ promises is there, and dir() shows nothing else
    assert sorted(auditor.__all__) == dir(auditor)
    assert set(auditor.__all__) == {*auditor._HOME, "__version__"}
    for name in auditor.__all__:
        assert getattr(auditor, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Audits'"):
        _ = auditor.Audits  # type: ignore[attr-defined]


def test_the_names_for_type_checkers_are_the_same() -> None:
    tree = ast.parse((ROOT / "auditor" / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed == auditor._HOME


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["run", "--help"],
        ["show", "--help"],
        ["rules", "--help"],
        ["serve", "--help"],
        ["push", "--help"],
        ["token", "--help"],
        ["gate", "--help"],
        ["baseline", "--help"],
        ["diff", "--help"],
    ],
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom auditor.cli import main\nmain(sys.argv[1:])\n"
        "print('\\n', *{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert HEAVY & set(done.stdout.splitlines()[-1].split()) == set()
