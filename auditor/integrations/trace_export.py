"""The files of a profiler that is still in use: a trace that it gives away once, an execution trace that is open.

Kineto writes a trace once and refuses a second time ("Trace is already saved."), so that two handlers of one profiler
can't both export it. Here it is written to a file of ours, and the profiler's ``export_chrome_trace`` copies that file
until the next trace is ready: whoever comes later, another handler or the script, gets what he asked for.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from auditor.errors import AuditError

_EXPORT = "export_chrome_trace"
_OPEN_LIST = b'"nodes": ['
_END = b'"finish_ts"'
_LAST_BYTES = 200


class ExportedTrace:
    """The trace of ``prof`` in a file, as long as this or the profiler is there."""

    def __init__(self, prof: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fusion-audit-")
        self.path = Path(self._folder.name) / "trace.json"
        self._prof = weakref.ref(prof)
        try:
            prof.export_chrome_trace(str(self.path))
        except RuntimeError as error:
            self._folder.cleanup()
            raise AuditError(_already(error)) from None
        setattr(prof, _EXPORT, self._copy)

    def release(self) -> None:
        """The profiler exports by itself again; the file is gone."""
        prof = self._prof()
        if prof is not None and prof.__dict__.get(_EXPORT) == self._copy:
            delattr(prof, _EXPORT)
        self._folder.cleanup()

    def _copy(self, path: str, use_python_export: bool = False) -> None:
        """In place of the profiler's own method, with the same arguments and results."""
        prof = self._prof()
        if use_python_export and prof is not None:
            type(prof).export_chrome_trace(prof, path, use_python_export=True)
        elif str(path).endswith(".gz"):
            with open(self.path, "rb") as source, gzip.open(path, "wb") as target:
                shutil.copyfileobj(source, target)
        else:
            shutil.copyfile(self.path, path)


def _already(error: RuntimeError) -> str:
    if "already saved" in str(error):
        return (
            "the trace was exported by another handler before, and a profiler gives it once; "
            "give that handler to this one: auditor.trace_handler(also=…)"
        )
    return f"the profiler gave no trace: {error}"


class OpenExecutionTrace:
    """The file of a profiler's ``ExecutionTraceObserver``, to which every cycle of a schedule adds its nodes."""

    def __init__(self) -> None:
        self._read = 0

    def part(self, prof: Any, target: Path) -> Path | None:
        """What was added since the last call, closed and written to ``target``; ``None`` where nothing is observed."""
        file = _observed_file(prof)
        if file is None:
            return None
        raw = file.read_bytes()
        begin = raw.find(_OPEN_LIST)
        if begin < 0:
            return None
        begin += len(_OPEN_LIST)
        since, self._read = max(begin, self._read), len(raw)
        if _END in raw[-_LAST_BYTES:] and since == begin:
            target.write_bytes(raw)  # finished already
        else:
            target.write_bytes(raw[:begin] + raw[since:].strip().strip(b",") + b"]}")
        return target


def _observed_file(prof: Any) -> Path | None:
    observer = getattr(prof, "execution_trace_observer", None)
    file = getattr(observer, "output_file_path_observer", "") or getattr(observer, "output_file_path", "")
    return Path(file) if file and Path(file).is_file() else None
