"""The trainer: Megatron model, losses, optimizer step, checkpoints, weights."""
