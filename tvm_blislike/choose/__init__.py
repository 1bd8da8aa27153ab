"""Which implementation and configuration compute each layer of a model."""
