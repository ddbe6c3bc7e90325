"""What OpenAI-like and Anthropic APIs promise: what may be shared, when an answer is complete, and what it cost.

Here live the routes, completeness rules and usage parsing of those APIs. It does no IO, and only judges bytes it is given.
"""
