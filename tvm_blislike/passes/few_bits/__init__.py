"""Products of few rows with weights of 4 bits, which stay so in memory.

`kernel` multiplies rows of 8 bits by panels of weights, `rows` quantizes the rows by block.
"""
