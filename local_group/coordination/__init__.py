"""Who leads a group and in which epoch: one file now.

Imports nothing of ours but `local_group.process_errors`; the gateway imports it.
"""
