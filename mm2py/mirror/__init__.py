"""What a mirror keeps in Kafka: naming policies, offset syncs, heartbeats, source offsets."""
