"""What a checkpoint costs training: written beside it, and waited for.

    python -m benchmarks.checkpoint [--steps N] [--repeats N] [OVERRIDE ...]

A model of the smoke experiment's shape but wider trains N steps on one synthetic batch: without a
checkpoint, with one that is written beside the steps, and with one that is waited for before they
go on. They take turns; prints the median of each, and how long the save itself held up training.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

from glm52_tbench2.config.compose import compose
from glm52_tbench2.trainer.cpu import install

install()
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from benchmarks.train_step import make_batch  # noqa: E402
from glm52_tbench2.trainer import ranks  # noqa: E402
from glm52_tbench2.trainer.checkpoint_files import checkpoint_path  # noqa: E402
from glm52_tbench2.trainer.model import build_model, wrap  # noqa: E402
from glm52_tbench2.trainer.optimizer import build_optimizer  # noqa: E402
from glm52_tbench2.trainer.saver import Saver  # noqa: E402
from glm52_tbench2.trainer.step import TrainStep  # noqa: E402

WIDER = ["model.hidden_size=512", "model.dense_ffn_size=4096", "model.expert_ffn_size=1024"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=4, help="steps of one turn")
    parser.add_argument("--repeats", type=int, default=3, help="turns")
    parser.add_argument("overrides", nargs="*", help="as for glm52 train, after experiment=smoke")
    given = parser.parse_args()
    small = ["rollout.samples_per_prompt=2", "rollout.prompts_per_step=1"]
    small += ["rollout.max_session_tokens=256"]
    run = compose(["experiment=smoke", *small, *WIDER, *given.overrides])
    ranks.connect(run, dist.HashStore(), 0, 1)
    torch.manual_seed(run.seed)
    model = build_model(run)
    wrapped = wrap(model)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.02)
    optimizer = build_optimizer(run, wrapped)
    optimizer.reload_model_params()
    step, batch = TrainStep(run, wrapped, optimizer), make_batch(run)
    step(batch, 1)
    kinds = ("no checkpoint", "beside the steps", "waited for")
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    held_up = []
    with tempfile.TemporaryDirectory() as folder:
        saver = Saver(Path(folder), run.checkpoint, model, optimizer)
        for turn in range(given.repeats):
            for kind in kinds:
                started = perf_counter()
                if kind != "no checkpoint":
                    saver.save(turn + 1)
                    held_up.append(perf_counter() - started)
                if kind == "waited for":
                    saver.wait()
                for _ in range(given.steps):
                    step(batch, 1)
                saver.wait()
                times[kind].append(perf_counter() - started)
        files = checkpoint_path(Path(folder), given.repeats).iterdir()
        size = sum(path.stat().st_size for path in files)
    num = sum(weight.numel() for weight in model.parameters())
    print(f"{num / 1e6:.0f}M parameters, a checkpoint of {size / 2**20:.0f} MiB")
    for kind, found in times.items():
        print(
            f"{given.steps} steps, {kind:17} median {statistics.median(found):.2f} s, "
            f"{min(found):.2f} to {max(found):.2f} s"
        )
    print(f"a save held up training for {statistics.median(held_up):.2f} s")
    ranks.disconnect()


if __name__ == "__main__":
    main()
