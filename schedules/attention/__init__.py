"""Attention in one function: both products, and the softmax between them."""
