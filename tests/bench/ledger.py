"""Where a request's CPU time goes: ``python -m bench.ledger`` samples the server with py-spy under load and prints Markdown.

It does not stop the server for that, so that a few stacks are read while they change: figures are good to about a tenth.
A sample belongs to the first step in the table that names a function of its stack, the innermost first. What C code does
(system calls, too) counts for the line of Python that called it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import contenders as who
from bench.contenders import ALONE, SHARED
from bench.figures import Figures, markdown
from bench.load import FRESH, Script, wrk
from bench.machine import LOAD_CORE, Broken, program
from bench.stand import Bench, warm

WORKS = (("replay", SHARED, 1), ("pass-through", ALONE, 1), ("new flight", SHARED, FRESH))
SECONDS, RATE = 6, 500

# A step and its functions, as "function (end of the file's name". Of one stack the innermost function that is named counts.
STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("the loop itself: epoll, reads, callbacks", ("Runner.run (",)),
    ("write to the client", ("Connection.send (", "Responder.push (")),
    ("write to the upstream", ("Link.write (",)),
    ("recognise the request, or its head", ("Recogniser.", "Shortcuts.", "Connection.", "RequestHandler.")),
    ("prepared answer", ("Prepared.",)),
    ("find the kept answer", ("Replays.", "Shelf.")),
    ("tasks", ("create_task (", "Tasks.", "Front._occupied (")),
    ("events, metrics, counts", ("emit (", "Visit.ended (", "replayed (", "_call_ended (", "_ended (", "observer.py", "tally.py")),
    ("plan and key: body, fingerprint, call", ("admit.py", "fingerprint.py", "memo.py", "canonical.py", "facts.py")),
    ("ledger: claim, start, seal", ("metered.py", "soloflight_memory/", "core/ledger.py", "core/claim.py", "core/tenure.py",
                                    "core/standing.py", "core/transition.py", "lease.py")),
    ("take and give back the upstream's connection, its bounds", ("pool.py", "patience.py", "upstream.py", "exchange.py")),
    ("read the upstream's answer", ("plain.py", "link.py", "client_proto.py")),
    ("judge the answer: complete, usage", ("judges.py", "documents.py", "usage.py", "identity.py")),
    ("head for the client", ("wire.py", "forms.py", "Relay._head (")),
    ("flight, log, listeners", ("drive.py", "owner.py", "flights.py", "listen.py", "node.py", "core/log.py", "publish.py",
                                "respond.py", "core/frames.py")),
    ("relay", ("relay.py",)),
)  # fmt: skip
REST = "everything else"


def step_of(stack: list[str]) -> str:
    """The step that a stack belongs to, its innermost frame last."""
    for frame in reversed(stack):
        for step, functions in STEPS:
            if any(function in frame for function in functions):
                return step
    return REST


def sampled(pid: int, to: Path) -> Counter[str]:
    """Samples of each step while the load runs."""
    command = [
        "taskset",
        "-c",
        LOAD_CORE,
        spy(),
        "record",
        "--nonblocking",
        "-d",
        str(SECONDS - 2),
        "-r",
        str(RATE),
        "-f",
        "raw",
    ]
    subprocess.run([*command, "-o", str(to), "-p", str(pid)], check=True, capture_output=True)
    steps: Counter[str] = Counter()
    for line in to.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        steps[step_of([re.sub(r":\d+\)$", ")", frame) for frame in stack.split(";")])] += int(count)
    return steps


def spy() -> str:
    """py-spy's program."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else program("py-spy")
    if found is None:
        raise Broken("py-spy is not installed: pip install py-spy")
    return found


def ledger(bench: Bench) -> str:
    """One table: µs of each step in each work."""
    costs: dict[str, dict[str, float]] = {}
    with bench.fixed_origin() as origin:
        for work, path, variety in WORKS:
            script = Script.write(bench.room(), 500, variety)
            with bench.server(who.SOLOFLIGHT, origin) as server:
                warm(server, path, script.bodies("")[0])
                url = f"http://127.0.0.1:{server.port}{path}"
                cpu_us = wrk(url, script, SECONDS, server.pid, "a").cpu_us  # without the spy, which slows it down
                with ThreadPoolExecutor(1) as beside:
                    spying = beside.submit(sampled, server.pid, bench.room() / "raw")
                    wrk(url, script, SECONDS, server.pid, "b")
                    steps = spying.result()
            whole = sum(steps.values())
            costs[work] = {"in all": cpu_us} | {step: cpu_us * count / whole for step, count in steps.items()}
    names = [step for step, _ in STEPS] + [REST, "in all"]
    rows = [(name, *(f"{costs[work].get(name, 0):.1f}" for work, *_ in WORKS)) for name in names]
    return markdown(("µs of CPU per request", *(work for work, *_ in WORKS)), rows)


def main() -> int:
    """Print the table."""
    os.sched_setaffinity(0, {int(LOAD_CORE)})
    with tempfile.TemporaryDirectory(prefix="soloflight-ledger-") as name:
        print(ledger(Bench(Path(name), Figures(), False, Path(name) / "none", 1)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
