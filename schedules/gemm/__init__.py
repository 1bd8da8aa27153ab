"""The algorithm `gemm`: its TE definition and its schedule."""
