"""Points in time, as the store writes them, for readers."""

from __future__ import annotations

from datetime import datetime, timezone

from dash import html

from auditor.report.format import safe


def moment(iso: str) -> datetime | None:
    """The time that ISO 8601 text names, in UTC; None where it names none."""
    try:
        read = datetime.fromisoformat(iso.replace("Z", "+00:00"))
        return read.replace(tzinfo=read.tzinfo or timezone.utc).astimezone(timezone.utc)
    except (ValueError, OverflowError):  # the first hours of the year 1, east of Greenwich, are none in UTC
        return None


def written(iso: str) -> str:
    """``2026-11-30 08:20 UTC``; text that is no time as it stands."""
    read = moment(iso)
    return f"{read:%Y-%m-%d %H:%M} UTC" if read else safe(iso)


def when(iso: str) -> html.Time:
    """The time for a page: short to read, exact for machines."""
    return html.Time(written(iso), dateTime=safe(iso))


def lasted(start: str, end: str) -> str:
    """``1 min 4 s`` between two times; "" where one of them is not known."""
    first, last = moment(start), moment(end)
    if first is None or last is None:
        return ""
    seconds = max(round((last - first).total_seconds()), 0)
    if seconds < 60:
        return f"{seconds} s"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
