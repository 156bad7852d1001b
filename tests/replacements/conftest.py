"""Triton's interpreter has to be chosen before any kernel is defined, so for this whole process."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
