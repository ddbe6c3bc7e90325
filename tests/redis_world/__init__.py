"""The world of the Redis coordinator's tests: what stands in Redis as the model's values, and servers of every kind."""
