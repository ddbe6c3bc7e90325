"""The observer that counts: what the proxy reports becomes prometheus_client metrics.

Labels come from small closed sets; a value that a client chooses is never one.
"""
