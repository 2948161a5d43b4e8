"""Weights of any size between transformers' files and Megatron's checkpoints, a tensor at a time.

`glm52 weights import` and `glm52 weights export` run in one process and hold one tensor: no layout
of ranks is needed for either, and what they write can be read by every layout.
"""
