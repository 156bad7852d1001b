"""Options that several verbs share, and what they mean."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from auditor.config import Config
    from auditor.devices.describe import Device


def positive(text: str) -> int:
    number = _whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return number


def not_negative(text: str) -> int:
    number = _whole(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, not {text}")
    return number


def share(text: str) -> float:
    """``1%`` or ``0.01`` as 0.01."""
    try:
        number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a share such as 1% or 0.01, not {text!r}")
    return number


def seconds(text: str) -> float:
    """``90s``, ``30m`` or ``2h`` (a bare number is seconds) in seconds."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        found = float(number) * unit
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"must be a time such as 90s, 30m or 2h, not {text!r}")
    return found


def add_db(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--db",
        metavar="PLACE",
        help="store: a folder, a database file or a URL (default: $FUSION_AUDIT_DIR, or .fusion-audit of the project)",
    )


def add_report(parser: argparse.ArgumentParser, formats: tuple[str, ...]) -> None:
    parser.add_argument("--format", choices=formats, default="text", help="format of the report (default: text)")
    parser.add_argument("-o", dest="output", metavar="FILE", type=Path, help="write the report to FILE")


def add_rules(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rules", metavar="DIR", type=Path, action="append", default=[], help="folder of more rules; may be repeated"
    )


def add_audit(parser: argparse.ArgumentParser) -> None:
    """What ``run`` and ``import`` have in common."""
    parser.add_argument("--name", help="name of the stored run")
    add_rules(parser)
    add_selection(parser)
    parser.add_argument(
        "--device", metavar="FILE", type=Path,
        help="YAML description of the device, or the name of a known one (fusion-audit devices list)",
    )  # fmt: skip
    add_report(parser, ("text", "json"))
    add_db(parser)


def add_selection(parser: argparse.ArgumentParser) -> None:
    for option, meaning in (("select", "use only these rules"), ("ignore", "leave out these rules")):
        parser.add_argument(
            f"--{option}", metavar="RULES", type=_names, action="extend", default=[],
            help=f"{meaning}: ids, starts of ids (FUS2) or names, separated by commas",
        )  # fmt: skip


def settings(args: argparse.Namespace) -> Config:
    """The project's settings with the options on top."""
    from auditor.config import load_config, override

    config = override(
        load_config(),
        name=getattr(args, "name", None),
        select=getattr(args, "select", ()),
        ignore=getattr(args, "ignore", ()),
        rules=getattr(args, "rules", ()),
    )
    if config.name:
        _check_name(config.name)
    return config


def described_device(args: argparse.Namespace) -> Device | None:
    from auditor.devices.describe import device_called

    return device_called(args.device) if args.device else None


def _check_name(name: str) -> None:
    """Refuse a name that could not be used to find the run again."""
    from auditor.errors import AuditError
    from auditor.store.ids import is_id

    if name == "latest" or is_id(name):
        meaning = "the newest run" if name == "latest" else "a run's id"
        raise AuditError(f"{name!r} can't name a run: it means {meaning}; choose another name")
    if not name.isprintable():  # control characters, and bytes that are not UTF-8
        raise AuditError(f"{name!r} can't name a run: it holds characters that can't be shown; choose another name")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("needs at least one rule")
    return names
