"""Which machine this is, and which user on it: whose scripts a store may have run again here."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from pathlib import Path

_FILE = "machine-id"


def state_folder() -> Path:
    """Where this user's facts on this machine lie (``$XDG_STATE_HOME/fusion-auditor``); made if missing."""
    from platformdirs import user_state_path

    folder = user_state_path("fusion-auditor")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def machine_id() -> str:
    """Sixteen hexadecimal digits that no other machine, and no other user of this one, has.

    A random number kept in the user's own folder, and the host's name: a home folder can be on several machines.
    """
    return hashlib.sha256(f"{_random_part()} {socket.gethostname()}".encode()).hexdigest()[:16]


def _random_part() -> str:
    try:
        file = state_folder() / _FILE
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return file.read_text(encoding="ascii") or f"user {os.getuid()}"
        with os.fdopen(descriptor, "w", encoding="ascii") as new:
            new.write(secrets.token_hex(16))
        return file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):  # no home folder to write to
        return f"user {os.getuid()}"
