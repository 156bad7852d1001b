"""A count of an audit that knows whose it is: an assertion that fails can then say what it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

if TYPE_CHECKING:
    from auditor.audit import Audit


class Count(int):
    """An ``int`` like any other; whatever is computed from it is a plain one."""

    audit: Audit
    key: str
    """The property of :class:`~auditor.audit.Audit` that it is: ``unfused_kernels``."""
    test: str
    """Id of the test that made the audit."""

    @classmethod
    def of(cls, value: int, audit: Audit, key: str, test: str) -> Count:
        """``value`` as the count ``key`` of ``audit``, made by ``test``."""
        made = cls(value)
        made.audit, made.key, made.test = audit, key, test
        return made

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type[int], tuple[int]]:
        """A copy, and what another process gets, is the number alone."""
        return int, (int(self),)
