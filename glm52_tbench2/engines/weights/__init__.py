"""Weights from the trainer to the engines: folders of them, and the transports.

Imports no torch: an engine that starts only looks for its folder here.
"""

from .folders import forget_after, latest, publish, tensor_shapes, to_serve, weights_dir

__all__ = ["forget_after", "latest", "publish", "tensor_shapes", "to_serve", "weights_dir"]
