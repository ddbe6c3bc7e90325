"""F3, the only asyncio logic: how a request becomes a flight and how its frames reach all who listen.

Here live admission, this node's flights, the owner's and the follower's work, the listener's cursor,
the upstream client, and `tasks`, the only module that may create a task. Every wait here is bounded,
every buffer capped, every task owned. Rules that need no IO belong in core; status lines and fields for
clients belong in web.
"""
