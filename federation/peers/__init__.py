"""Sessions with peers: channels to them, hellos and catalog subscriptions, and what they ask of us.

Imports transfer, catalog, limits, trust and `gossip`; only the gateway imports it.
"""
