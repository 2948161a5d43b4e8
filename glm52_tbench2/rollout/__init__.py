"""From a weight version to a batch: episodes, their verdicts, groups, advantages, step files."""
