"""What was measured, in files that many may write to."""
