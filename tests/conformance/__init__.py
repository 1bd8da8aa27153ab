"""The public test cases of the `onnx` package, run through the library."""
