"""The wheel holds what an installed auditor needs, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-w", str(folder), str(ROOT)], check=True, capture_output=True, text=True)
    return next(folder.glob("fusion_auditor-*.whl"))


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

    def test_installed_it_works_away_from_the_checkout(self, wheel: Path, tmp_path: Path) -> None:
        # GIVEN the wheel's content alone on the path
        zipfile.ZipFile(wheel).extractall(tmp_path / "site")

        # WHEN a command needs the rules and the migrations from it
        code = "import sys; sys.path.insert(0, 'site'); from auditor.cli import main; sys.exit(main(sys.argv[1:]))"
        rules, runs = (
            subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True)
            for words in (["rules", "show", "FUS201"], ["show", "--db", "store.db"])
        )

        # THEN they are the wheel's
        assert rules.returncode == 0, rules.stderr
        assert str(tmp_path / "site" / "auditor" / "rules" / "FUS201.yaml") in rules.stdout
        assert (runs.returncode, runs.stderr.startswith("error: no audits are stored in")) == (2, True)

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
