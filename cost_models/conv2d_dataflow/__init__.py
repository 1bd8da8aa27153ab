"""What the core's facts say about `conv2d_dataflow`: sizes, programs, configurations, time."""
