"""F4, the doors: HTTP in and HTTP out.

Here live the application, the handlers (which read as the life of a request), responses and error
bodies, the WebSocket tunnel, health and the admin pages. Who shares with whom is not decided here, and
no upstream is called from here: a handler asks flow and writes the frames it is given.
"""
