"""What a finding says of all its sites together."""

from __future__ import annotations

from typing import Any

from auditor.document import Site


def sums_of(places: list[Site]) -> dict[str, Any]:
    """Fields of a :class:`~auditor.document.Finding`: its sites, and what is a sum over them. Wall time is none."""
    return {
        "places": places,
        "sites": len(places),
        "kernels": sum(place.kernels for place in places),
        "kernels_after": sum(place.kernels_after for place in places),
        "device_us": sum(place.device_us for place in places),
        "bytes_now": sum(place.bytes_now for place in places),
        "bytes_fused": sum(place.bytes_fused for place in places),
    }
