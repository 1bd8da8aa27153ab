"""Products, softmax and products again become one kernel.

`views` finds where operands lie behind operators that move nothing, `scores` reads what stands
between both products, `patterns` finds whole attentions, and `to_kernels` puts calls in place.
"""
