"""The trainer role: ``python -m glm52_tbench2.trainer.main --run RUN``, one process a rank.

RANK, WORLD_SIZE and LOCAL_RANK say which rank it is; the ranks meet in the supervisor's store.
"""

import argparse
import logging
import os
import signal
import sys
import warnings
from pathlib import Path

from glm52_tbench2.config import load_run_config
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.schema import Device
from glm52_tbench2.config.signals import SignalsLost
from glm52_tbench2.engines.client import EngineError

RESTART_ME = 75


def main() -> int:
    """Exit code: 0 finished, 2 bad input told in one sentence, 75 to be started again, 1 failed."""
    parser = argparse.ArgumentParser(prog="python -m glm52_tbench2.trainer.main")
    parser.add_argument("--run", type=Path, required=True, help="run folder")
    run_dir = parser.parse_args().run.resolve()
    # Told to stop, a rank ends at once: whatever counts is on disk already.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    rank = int(os.environ.get("RANK", "0"))
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s rank {rank} %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )
    # Megatron calls torch.distributed by names that torch is about to change.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    try:
        return train(run_dir, rank, int(os.environ.get("WORLD_SIZE", "1")))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except (SignalsLost, EngineError, TimeoutError) as error:
        print(error, file=sys.stderr)
        return 1


def train(run_dir: Path, rank: int, world_size: int) -> int:
    """Trains the run to its last step.

    Raises UserError, SignalsLost, EngineError or TimeoutError.
    """
    run = load_run_config(run_dir)
    if run.parallel.device is Device.cpu:
        # On a machine with GPUs too, the run is one for the CPU.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from .cpu import install

    if install() and run.parallel.device is Device.cuda:
        raise UserError(
            "parallel.device is cuda, but torch finds no CUDA device; write parallel.device=cpu."
        )
    from .loop import BatchDamaged, TrainingLoop
    from .step import NonFiniteGradient

    try:
        TrainingLoop(run_dir, run, rank, world_size).run()
    except NonFiniteGradient as error:
        # It would be recomputed bit for bit: another start ends in the same way.
        raise UserError(str(error)) from error
    except BatchDamaged as error:
        print(error, file=sys.stderr)
        return RESTART_ME
    return 0


if __name__ == "__main__":
    sys.exit(main())
