"""Names for the objects that a step is made of, stable while objects come and go."""

from __future__ import annotations

import weakref
from typing import Any


class RootNames:
    """``Linear``, ``Linear#2``, … one name for each living object of a class.

    A script that deletes its model and builds another one of the same class goes on under the old name.
    """

    def __init__(self) -> None:
        self._slots: dict[str, list[weakref.ref[Any]]] = {}

    def key(self, thing: Any, name: str) -> str:
        """The name of ``thing``, an object of the class ``name``."""
        slots = self._slots.setdefault(name, [])
        place = next((i for i, slot in enumerate(slots) if slot() is thing), -1)
        if place < 0:
            place = next((i for i, slot in enumerate(slots) if slot() is None), len(slots))
            slots[place : place + 1] = [weakref.ref(thing)]
        return name if place == 0 else f"{name}#{place + 1}"
