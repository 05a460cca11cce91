"""Who is who: certificates and keys, how they are made, checked, and why a handshake failed.

Modules: `names` (what a certificate calls a group), `keys` (Ed25519 statement keys as text),
`authority` (makes CAs, certificates, keys), `credentials` (loads and checks them, for gRPC),
`diagnose` (why a connection to a peer fails), `handshakes` (who was refused here, and why).
"""
