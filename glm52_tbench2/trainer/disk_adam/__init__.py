"""Adam whose state lies in a node-local file and streams through memory bucket by bucket."""
