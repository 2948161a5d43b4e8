"""Agentic reinforcement learning on Terminal-Bench-2, from one composed config."""
