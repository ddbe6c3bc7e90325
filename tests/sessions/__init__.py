"""Words, a random world and planted faults for tests of the session lock."""
