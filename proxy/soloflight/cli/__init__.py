"""F5, the commands a person types: serve, check, demo, top, flights, plugins, hooks, explain.

Here live the composition root (the one place that builds settings, plugins, flow and web and joins
them), argument parsing, exit codes and what is printed. No decision about a request may live here: that
is flow's and core's.
"""
