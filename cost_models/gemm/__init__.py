"""What the core's facts say about `gemm`: sizes, configurations, time."""
