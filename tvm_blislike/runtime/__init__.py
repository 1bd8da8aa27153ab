"""Running a compiled model: its library, threads and memory."""
