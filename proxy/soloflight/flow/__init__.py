"""F3: the only asyncio logic. A request is admitted, joins or becomes a flight, and reads the flight's log.

May import core, ports, plugins and config; never web or cli. Only ``tasks`` creates asyncio tasks.
"""
