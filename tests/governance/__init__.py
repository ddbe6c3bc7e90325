"""The rules that make sharing safe to leave on, on real processes and on both backends.

One site for a backend serves all of these tests: a proxy with the memory backend, or two nodes at one Redis. Its stages
are chosen by name. A test reads::

    async def test_the_second_job_is_refused(site: Site, upstream: ScriptedUpstream) -> None:
        gate = asyncio.Event()
        upstream.play([gate, JOB])
        async with connect(site.one.port) as first:
            await first.send(job("reject", "s"))
            await upstream.wait_calls(1)
            assert refused(await ask(site.other.port, job("reject", "s"))) == (409, "session_busy")

``site.other`` is the other node, or the same one where there is one only. Behind every test nothing may run any more and
no session may be locked.
"""
