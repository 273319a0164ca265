"""What a connector author sees: contracts of connectors, tasks, policies and their context."""
