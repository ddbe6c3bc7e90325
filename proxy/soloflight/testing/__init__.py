"""For plugin authors, and for our own tests: the laws that a plugin must keep, and a world to try it in.

Here live the coordinator conformance suite, the scripted upstream and the fault proxy. This is public
API: a stranger's plugin is tested with the same suite as ours. Nothing here may be needed to serve a
request.
"""
