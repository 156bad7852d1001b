"""GEMM prologue: weights that cross memory quantised."""
