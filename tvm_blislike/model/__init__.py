"""What is computed and how: workloads, configurations, layouts, choices; the registry."""
