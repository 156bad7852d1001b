"""GEMM epilogue: bias, activation and residual while the tile is still in registers."""
