"""HTML's own ``select`` and checkbox as components; ``assets/fields.js`` draws them.

Dash's ``html.Select`` tells nobody what was chosen, and its drop-downs hide their label from screen readers and have a
stop for Tab that is hidden from them, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from dash.development.base_component import Component

Option = dict[str, str]
"""``value`` and ``label``."""


class _Field(Component):
    _children_props: list[str] = []
    _base_nodes = ["children"]
    _namespace = "fusion_fields"

    def __init__(self, **properties: object) -> None:
        self._prop_names = list(properties)
        self._valid_wildcard_attributes: list[str] = []
        self.available_properties = self._prop_names
        self.available_wildcard_properties: list[str] = []
        super().__init__(**properties)  # type: ignore[no-untyped-call]


class Select(_Field):
    """One of ``options``; ``value`` is None where the option of the value "" is chosen."""

    _type = "Select"

    def __init__(self, id: str, options: Sequence[Option], value: str | None, disabled: bool = False) -> None:
        super().__init__(id=id, options=list(options), value=value, disabled=disabled)


class Checkbox(_Field):
    """On or off: ``checked``."""

    _type = "Checkbox"

    def __init__(self, id: str, label: str, checked: bool, disabled: bool = False) -> None:
        super().__init__(id=id, label=label, checked=checked, disabled=disabled)
