"""Readers of a run folder, live or dead: tracking, report, summary. Imports config only."""
