"""The driver's tree of counters, as files under a root that the user chooses."""
