"""Real Kafka brokers from pinned jars, for the demo, tests and benches."""
