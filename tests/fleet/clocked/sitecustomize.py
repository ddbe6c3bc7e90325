"""For proxies that are started with this folder on PYTHONPATH: Redis keeps the time of a test's clock, a key, not its own."""

from soloflight_redis.coordinator import Options

CLOCK = "test-clock"
# The last option's default: clock_key.
Options.__init__.__defaults__ = (*(Options.__init__.__defaults__ or ())[:-1], CLOCK)
