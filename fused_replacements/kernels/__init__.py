"""Triton kernels and their launchers, one module for each replacement that has one. Imported only where Triton is."""
