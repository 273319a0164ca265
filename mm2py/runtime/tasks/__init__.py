"""One task: poll, send, acknowledge, commit."""
