"""What OpenAI-like and Anthropic APIs promise: what is shareable, when an answer is complete, its cost.

Here live the routes, completeness rules and usage parsing of those APIs. It does no IO, and only judges
bytes it is given.
"""
