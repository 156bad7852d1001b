"""The service's log: no request writes a line of its own, and neither a full disk nor a removed file is a mishap."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from auditor.errors import AuditError
from dashboard.api.logfile import LogFile, OneLine, log_to


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "service.log"


@pytest.fixture
def log(file: Path) -> Iterator[logging.Logger]:
    logger, handler = logging.getLogger("tested.log"), LogFile(file, encoding="utf-8")
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger
    logger.removeHandler(handler)
    handler.close()


def test_a_record_is_the_only_one_that_begins_a_line(log: logging.Logger, file: Path) -> None:
    log.info("GET /x\n2026-11-30 12:00:00,000 INFO FORGED\r\x1b[2J\x00")
    try:
        raise ValueError("bad\n2026-11-30 FORGED")
    except ValueError:
        log.exception("it failed")
    text = file.read_text()
    assert [line for line in text.splitlines() if not line.startswith("    ")] == [
        line for line in text.splitlines() if line.endswith(("INFO GET /x", "ERROR it failed"))
    ]
    assert "    2026-11-30 12:00:00,000 INFO FORGED\\x0d\\x1b[2J\\x00\n" in text
    assert not set(text) & {"\x1b", "\r", "\x00"}


def test_a_log_that_was_removed_is_made_anew(log: logging.Logger, file: Path) -> None:
    log.info("before")
    file.unlink()
    log.info("after")
    assert file.read_text().endswith("after\n")


def test_a_full_disk_says_nothing_on_the_terminal(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full:
        def write(self, _text: str) -> None:
            raise OSError(28, "No space left on device")

        def flush(self) -> None: ...

        def close(self) -> None: ...

        def tell(self) -> int:
            return 0

        def seek(self, *_at: int) -> None: ...

    handler = next(each for each in log.handlers if isinstance(each, LogFile))
    with monkeypatch.context() as patch:
        patch.setattr(handler, "stream", Full())
        log.info("lost")
    assert capsys.readouterr().err == ""


def test_a_log_that_can_not_be_written_is_told_in_a_sentence(file: Path) -> None:
    file.mkdir()
    with pytest.raises(AuditError, match=r"service\.log: the service's log can't be written: Is a directory"):
        log_to(file)
