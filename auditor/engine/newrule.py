"""A rule file to start from."""

from __future__ import annotations

import re
from pathlib import Path

from auditor.engine.rulefile import builtin_folder
from auditor.engine.rules import load_rules
from auditor.errors import AuditError

TEMPLATE = """\
# yaml-language-server: $schema={schema}
id: {id}
name: {name}
family: elementwise            # elementwise reduction epilogue prologue horizontal algorithmic launch compiler movement
status: preview
severity: warning
match:
  any_of:
    - |
      a = aten.mul(x, c_scale)       # c_* is any constant
      y = aten.tanh(a)
  outputs: []                  # names that something outside may read; the last line's result always may
where:
  dtype: {{x: [f16, bf16, f32, f64]}}
replacement: null
docs:
  what: Finds a scale followed by a tanh.
  why: Two kernels write and read the scaled value through device memory.
  example: |
    y = torch.tanh(x * scale)
  instead: |
    torch.compile of the function above, or a fused kernel
  safety: Equal up to the rounding of the scaled value.
tests:
  - name: one site
    graph: |                   # paste from: fusion-audit graph RUN --at MODULE
      x: f32[64, 1024]
      a = aten.mul(x, 2.0)
      y = aten.tanh(a)
    expect: {{sites: 1, kernels: 2}}
  - name: the scaled value is read again
    graph: |
      x: f32[64, 1024]
      a = aten.mul(x, 2.0)
      y = aten.tanh(a)
      z = aten.neg(a)
      return y, z
    expect: {{sites: 0, reason: a escapes to aten.neg}}
"""


def new_rule(name: str, folder: Path) -> Path:
    """Write ``folder/NAME.yaml`` with a working rule and its tests, and give its path.

    Raises AuditError for a name that is no kebab-case name, one that is taken, or a file that exists.
    """
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise AuditError(
            f"{name!r} is no rule name; use lower-case words joined by hyphens, such as unfused-scaled-tanh"
        )
    known = load_rules([folder] if folder.is_dir() and any(folder.rglob("*.y*ml")) else [])
    if any(rule.name == name for rule in known):
        raise AuditError(f"a rule named {name} exists already; see: fusion-audit rules show {name}")
    path = folder / f"{name}.yaml"
    taken = {rule.id for rule in known}
    number = next(n for n in range(1, 10_000) if f"USR{n:03d}" not in taken)
    text = TEMPLATE.format(id=f"USR{number:03d}", name=name, schema=builtin_folder() / "schema.json")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise AuditError(f"{path} exists already; choose another name") from None
    except OSError as error:
        raise AuditError(f"{path}: cannot be written: {error.strerror}") from None
    return path
