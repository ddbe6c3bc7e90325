"""The Redis coordinator: the same ledger as `core.ledger`, executed as Lua, for a fleet of nodes.

Here live the scripts, the connection and its breaker. Rules that differ from the ledger's may not live
here: the conformance suite and the differential test hold the two equal.
"""
