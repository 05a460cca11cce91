"""One real gateway among many light peers: what a large federation costs it.

`peers` is the program that is all the others; `measure` starts both and reads the processor's clock.
"""
