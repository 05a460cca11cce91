"""The command `moonmesh`: reads arguments, calls one function, prints; no logic of its own.

Imports everything below; nothing imports it.
"""
