"""The wheel holds what an installed auditor needs, and nothing else.

That it works, installed alone and away from the checkout, is shown by ``tests/installed.py``, which ``.ci/run`` runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    built([sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), "."], ROOT)
    return next(folder.glob("fusion_auditor-*.whl"))


def built(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as held:
        return {name: held.read(name) for name in held.namelist()}


@pytest.mark.slow
class TestWheel:
    def test_it_holds_the_package_its_data_and_the_rules(self, wheel: Path) -> None:
        held = set(zipfile.ZipFile(wheel).namelist())

        packages = [
            path for name in ("auditor", "dashboard", "fused_replacements") for path in (ROOT / name).rglob("*")
        ]
        files = (path for path in packages if path.is_file() and "__pycache__" not in path.parts)
        expected = {str(path.relative_to(ROOT)) for path in files}
        expected |= {f"auditor/rules/{path.relative_to(ROOT / 'rules')}" for path in (ROOT / "rules").rglob("*.*")}
        assert {name for name in held if ".dist-info/" not in name} == expected
        assert any(name.startswith("auditor/store/migrations/versions/") for name in held)
        assert "auditor/py.typed" in held
        assert "auditor/rules/FUS201.yaml" in held
        assert {"dashboard/index.html", "dashboard/assets/style.css"} <= held

    def test_it_is_small_and_names_its_commands(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as held:
            (entries,) = (name for name in held.namelist() if name.endswith(".dist-info/entry_points.txt"))
            points = ConfigParser()
            points.read_string(held.read(entries).decode())

        assert wheel.stat().st_size < 2_000_000
        assert {section: dict(points[section]) for section in points.sections()} == {
            "console_scripts": {"fusion-audit": "auditor.cli:main"},
            "pytest11": {"fusion_audit": "auditor.testing.plugin"},
        }

    def test_the_sdist_builds_the_same_wheel(self, wheel: Path, tmp_path: Path) -> None:
        # GIVEN the sdist of this checkout, unpacked where there is no git
        built([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)], ROOT)
        with tarfile.open(next(tmp_path.glob("fusion_auditor-*.tar.gz"))) as sdist:
            sdist.extractall(tmp_path, filter="data")
        (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())

        # WHEN a wheel is built from it
        built([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], unpacked)

        # THEN it holds the same files, to the byte
        assert contents(next(tmp_path.glob("*.whl"))) == contents(wheel)

    def test_installed_it_brings_the_plugin_of_pytest(self, wheel: Path, tmp_path: Path) -> None:
        # GIVEN the wheel's content on the path, its metadata included
        zipfile.ZipFile(wheel).extractall(tmp_path / "site")
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        (tmp_path / "test_it.py").write_text(
            "import sys\nimport pytest\n\n@pytest.mark.fusion_budget(max_kernels=1)\ndef test_it(): pass\n\n"
            "def test_fixture(fusion_audit): print(sys.modules[type(fusion_audit).__module__].__file__)\n"
        )

        # WHEN pytest runs, told of nothing
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-s", "--strict-markers", "-p", "no:dash"], cwd=tmp_path,
            capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        )  # fmt: skip

        # THEN its fixture and marker are there, from the wheel
        assert done.returncode == 1, done.stdout + done.stderr
        assert "fusion_budget: the test made no audit" in done.stdout
        assert "1 failed, 1 passed" in done.stdout
        assert str(tmp_path / "site" / "auditor" / "testing" / "fixture.py") in done.stdout
