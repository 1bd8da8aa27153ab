"""What the core's facts say about `conv2d_direct`: sizes, configurations, time."""
