"""The legacy MirrorMaker 1: record by record through a consumer group, by confluent-kafka."""
