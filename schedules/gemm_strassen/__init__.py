"""The algorithm `gemm_strassen`: its TE definition and its schedule."""
