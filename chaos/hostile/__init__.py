"""Peers with valid certificates that lie, poison, flood and stall.

`answers` is what they send where they are asked, `attacks` what they do by themselves, `statements` what
they say of themselves, `peer` the program.
"""
