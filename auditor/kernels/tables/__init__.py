"""The table of kernel names, the most particular first: the first row that a name fits says what it is."""

from __future__ import annotations

from auditor.kernels.row import Row
from auditor.kernels.tables.attention import ATTENTION
from auditor.kernels.tables.communication import COMMUNICATION
from auditor.kernels.tables.compilers import COMPILERS
from auditor.kernels.tables.lookups import LOOKUPS
from auditor.kernels.tables.native import NATIVE
from auditor.kernels.tables.products import BY_SCHEME, PRODUCTS
from auditor.kernels.tables.quantised import QUANTISED
from auditor.kernels.tables.serving import SERVING, SHARED
from auditor.kernels.tables.training import TRAINING
from auditor.kernels.tables.vendor import VENDOR
from auditor.kernels.tables.words import WORDS

ROWS: tuple[Row, ...] = (
    *BY_SCHEME, *COMMUNICATION, *COMPILERS, *SERVING, *TRAINING, *SHARED, *LOOKUPS, *QUANTISED, *ATTENTION, *VENDOR,
    *NATIVE, *PRODUCTS, *WORDS,
)  # fmt: skip
