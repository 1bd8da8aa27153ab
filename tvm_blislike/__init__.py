"""BLIS-style CPU kernels for Apache TVM."""
