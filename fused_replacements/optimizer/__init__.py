"""Optimizer steps of one tensor after the other as a few kernels."""
