"""Tuning: few measurements per layer, kept as records that later compilations follow."""
