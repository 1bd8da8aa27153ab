"""Binary networks: convolutions and products of signs by counting bits.

`to_bits` is the pass. `signs` knows tensors of a few numbers that depend on a comparison only;
`layers`, what is a product of signs; `thresholds`, which counts lead to which side of the next
comparison. `operators` are those of Relax in between; `packing` is the kernel that makes words.
"""
