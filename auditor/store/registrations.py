"""Which scripts this machine may run again: those that were run here from the command line."""

from __future__ import annotations

from dataclasses import dataclass, fields

from sqlalchemy import select

from auditor.store.models import RegistrationRow
from auditor.store.rowtable import RowTable, now


@dataclass(frozen=True)
class Registration:
    """A run's script as it was started on ``machine``."""

    run: str
    machine: str
    folder: str
    """The current folder at that time, absolute."""
    script: str
    """Absolute path."""
    typed: str
    """The script as it stood on the command line."""
    args: list[str]
    sha256: str
    """Of the script's bytes at that time."""
    created: str = ""


class RegistrationTable(RowTable):
    """The table of registrations."""

    def put(self, registration: Registration) -> None:
        """Store it in place of an earlier one of the same run and machine."""
        self._put(RegistrationRow, _values(registration))

    def get(self, run: str, machine: str) -> Registration | None:
        columns = [getattr(RegistrationRow, f.name) for f in fields(Registration)]
        wanted = select(*columns).where(RegistrationRow.run == run, RegistrationRow.machine == machine)
        with self._reading() as session:
            row = session.execute(wanted).first()
        return Registration(*row) if row else None


def registration_row(registration: Registration) -> RegistrationRow:
    return RegistrationRow(**_values(registration))


def _values(registration: Registration) -> dict[str, object]:
    values = {f.name: getattr(registration, f.name) for f in fields(Registration)}
    return values | {"created": registration.created or now()}
