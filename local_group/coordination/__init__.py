"""Who leads a group and in which epoch: one file now.

Imports nothing of ours but `local_group.errors`; the gateway imports it.
"""
