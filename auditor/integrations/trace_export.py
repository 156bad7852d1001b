"""The files of a profiler that is still in use: a trace that it gives away once, an execution trace that is open.

Kineto writes a trace once and refuses a second time ("Trace is already saved."), so that two handlers of one profiler
can't both export it. Here it is written to a file of ours, and the profiler's ``export_chrome_trace`` copies that file
until the next trace is ready: whoever comes later, another handler or the script, gets what he asked for.
"""

from __future__ import annotations

import gzip
import shutil
import uuid
import weakref
from pathlib import Path
from typing import Any

from torch._C._profiler import _disable_execution_trace_observer, _enable_execution_trace_observer
from torch.autograd.profiler import record_function

from auditor.collect.forks import temporary_folder
from auditor.collect.stderr import quiet
from auditor.errors import AuditError

_EXPORT = "export_chrome_trace"
_OPEN_LIST = b'"nodes": ['
_END = b'"finish_ts"'
_LAST_BYTES = 200
_MOST_NODES = 200
"""A node of ours is some 600 bytes, and the buffer 8 KiB."""


class ExportedTrace:
    """The trace of ``prof`` in a file, as long as this or the profiler is there."""

    def __init__(self, prof: Any) -> None:
        self._folder = temporary_folder(self)
        self.path = self._folder / "trace.json"
        self._prof = weakref.ref(prof)
        try:
            prof.export_chrome_trace(str(self.path))
        except RuntimeError as error:
            raise AuditError(_already(error)) from None
        setattr(prof, _EXPORT, self._copy)

    def release(self) -> None:
        """The profiler exports by itself again; the file is gone."""
        prof = self._prof()
        if prof is not None and prof.__dict__.get(_EXPORT) == self._copy:
            delattr(prof, _EXPORT)
        shutil.rmtree(self._folder, ignore_errors=True)

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
    """The file of a profiler's ``ExecutionTraceObserver``, to which every cycle of a schedule adds its nodes.

    It is finished when the observer is unregistered, after which no cycle could be added. Until then the last nodes are
    in a buffer; nodes of ours, which are no ops, push them out.
    """

    def __init__(self) -> None:
        self._read = 0

    def part(self, prof: Any, target: Path) -> Path | None:
        """What was added since the last call, closed and written to ``target``; ``None`` where nothing is observed."""
        file = _observed_file(prof)
        if file is None:
            return None
        if prof.execution_trace_observer.is_registered:
            raw = _pushed_out(file)
        else:
            raw = file.read_bytes().rstrip()
        begin = raw.find(_OPEN_LIST)
        if begin < 0:
            return None
        begin += len(_OPEN_LIST)
        since, self._read = max(begin, self._read), len(raw)
        finished = raw.endswith(b"}") and _END in raw[-_LAST_BYTES:] and since == begin
        target.write_bytes(raw if finished else raw[:begin] + raw[since:].strip(b", \n") + b"]}")
        return target


def _pushed_out(file: Path) -> bytes:
    """The nodes of ``file``, whole: all that came before the first of ours."""
    name = f"## fusion-audit {uuid.uuid4().hex} ##"
    marker, size = b'"name": "' + name.encode(), file.stat().st_size
    with quiet():
        _enable_execution_trace_observer()
        try:
            for _ in range(_MOST_NODES):
                with record_function(name):
                    pass
                if file.stat().st_size > size and marker in file.read_bytes()[size:]:
                    break
        finally:
            _disable_execution_trace_observer()
    raw = file.read_bytes()
    at = raw.find(marker)
    return raw[: raw.rfind(b"{", 0, at)] if at >= 0 else raw


def _observed_file(prof: Any) -> Path | None:
    observer = getattr(prof, "execution_trace_observer", None)
    file = getattr(observer, "output_file_path_observer", "") or getattr(observer, "output_file_path", "")
    return Path(file) if file and Path(file).is_file() else None
