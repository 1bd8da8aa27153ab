"""Quantized models in integers: what lies between DequantizeLinear and QuantizeLinear.

`to_integers` is the pass. `steps` knows scales, zero points and the one 8-bit type in memory;
`real`, what a tensor of floats is in terms of integers while it is not yet computed. `layers`,
`arithmetic` and `moves` have the operators, each a kind; `curves`, functions of one tensor, which
become tables (`functions`); `products`, those of integers whose zero point comes at run time;
`emission` turns terms into Relax operators.
"""
