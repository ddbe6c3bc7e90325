"""F0, the decisions: pure functions and values, the same on every machine and in every test.

Here live the ledger (the state machine as a table), frames and logs, the canonical form and the
fingerprint, SSE and multipart parsing, stages, the rules of a complete answer, and the error tree.
Time, chance and bytes come in as arguments: nothing here may do IO, read a clock or the environment,
log, or know asyncio. Imports: the standard library, and the codecs orjson, msgpack, brotli and zstandard.
"""
