"""What the core's facts say about `gemm_strassen`: sizes, configurations, time."""
