"""The transports by name."""

from pathlib import Path

from glm52_tbench2.config.paths import resolve
from glm52_tbench2.config.schema import RunConfig, WeightTransport
from glm52_tbench2.config.signals import Signals

from .disk import DiskSender
from .distributed import DistributedSender
from .sender import Sender
from .tensor import TensorSender


def make_sender(config: RunConfig, run_dir: Path, signals: Signals) -> Sender:
    """What engine.transport names, for the trainer's rank 0."""
    start = resolve(config.model.path)
    match config.engine.transport:
        case WeightTransport.disk:
            return DiskSender(config, start, run_dir)
        case WeightTransport.tensor:
            return TensorSender(config, start)
        case WeightTransport.distributed:
            return DistributedSender(config, start, signals)
