"""What is known of a device: its data sheet, or what was measured on the machine at hand."""

from auditor.devices.describe import (
    Bandwidth,
    Device,
    device_called,
    find_device,
    load_device,
    unknown_device_note,
)

__all__ = ["Bandwidth", "Device", "device_called", "find_device", "load_device", "unknown_device_note"]
