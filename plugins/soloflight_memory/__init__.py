"""The memory coordinator: `core.ledger.step` over a dict, with futures for those who wait.

One process, no network. It has no privilege over a stranger's backend: it is found by entry point and
sees hookimpl, hookspecs, ports and core.
"""
