"""Peers with valid certificates that lie, poison, flood and stall.

`answers` is what they send where they are asked, `attacks` what they do by themselves, `statements` what
they say of themselves, `names` how a scenario asks for it, `peer` the program.
"""
