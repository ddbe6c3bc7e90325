"""F5, the commands a person types: serve, check, demo, top, flights, plugins, hooks, explain.

Here live the composition root (the one place that builds settings, plugins, flow and web and joins
them), argument parsing, exit codes and what is printed. No decision about a request may live here: that
is flow's and core's.

    group      the command line itself: what is in the tree is imported when it is asked for, plugins after that
    serve      settings, plugins, logging, then web.serve.run
    check      a config judged and printed without secrets
    show       the plugins that are there, the hooks there are
    demo       50 identical clients, one upstream call
    top        flights and rates of a running proxy, live
    flights    its flights: list, show, abort
    purge      its kept answers forgotten
    explain    a request judged; two: why they do or do not share
    admin_api  the admin listener as these commands ask it
    amounts    numbers, bytes and times as they are printed
    fitting    tables that fit their terminal
    request_file  a request written in a file
    refusal    faults -> one line each on standard error, exit 2
"""

from soloflight.cli.group import main

__all__ = ["main"]
