"""What groups say of themselves, sans-IO: no sockets, no clock, no random; `now` is an argument.

Imports only `moonmesh.v1` and `cryptography`; `federation` and `chaos` may import it.
"""
