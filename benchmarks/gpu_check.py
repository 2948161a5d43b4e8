"""Whether a GPU computes what the CPU path computes. NEVER RUN on a GPU so far: none was at hand.

    python -m benchmarks.gpu_check [--family NAME]

For a small random model of each family, once in plain torch on the CPU and once on the GPU with
Transformer Engine: a batch's log-probabilities and entropies, one training step, its gradients
after clipping and the weights it leaves, all in float32 without TF32. Prints the largest difference
of each against its tolerance. Exit code: 0 equal, 1 different, 2 no GPU or no Transformer Engine.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.schema import Device, ModelFamily, RunConfig

# The products of float32 numbers are added up in another order.
TOLERANCES = {"logp": 1e-3, "entropy": 1e-3, "gradient": 1e-3, "weight": 1e-3}
SHAPE = {
    "num_layers": 4,
    "num_dense_layers": 1,
    "hidden_size": 256,
    "dense_ffn_size": 512,
    "num_heads": 8,
    "q_lora_rank": 128,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 48,
    "qk_rope_head_dim": 16,
    "v_head_dim": 64,
    "num_experts": 8,
    "expert_ffn_size": 128,
    "vocab_size": 1024,
}
INDEXER = {
    "index_heads": 16,
    "index_head_dim": 32,
    "index_topk": 16,
    "index_layers": "[1,2,4]",
}


def small_run(family: ModelFamily, device: Device, weights: Path, *overrides: str) -> RunConfig:
    """A run of a small model of the family, on one rank unless `overrides` say otherwise."""
    model = {**SHAPE, "family": family.name, "path": weights}
    if family is ModelFamily.glm_moe_dsa:
        model |= INDEXER
    return compose(
        [
            "experiment=smoke",
            *(f"model.{name}={value}" for name, value in model.items()),
            # Few and short: of many choices between keys, some hang on the last bit of a score.
            "rollout.prompts_per_step=1",
            "rollout.max_session_tokens=128",
            "rollout.max_turn_tokens=64",
            # An update is then a smooth function of the gradient, not its sign.
            "optim.eps=1e-2",
            f"parallel.device={device.name}",
            *overrides,
        ]
    )


def save_random_model(run: RunConfig) -> None:
    """Random starting weights for the run."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from glm52_tbench2.trainer.hf import hf_config

    torch.manual_seed(0)
    config = AutoConfig.for_model(**hf_config(run.model), initializer_range=0.1)
    AutoModelForCausalLM.from_config(config).save_pretrained(run.model.path)


def compute(run: RunConfig, out: Path) -> None:
    """One training step on this process's device; what it found goes to `out`."""
    from glm52_tbench2.trainer.cpu import install

    if install() is (run.parallel.device is Device.cuda):
        raise SystemExit(f"parallel.device is {run.parallel.device.name}, torch finds the other.")
    import torch.distributed as dist

    from benchmarks.train_step import make_batch
    from glm52_tbench2.trainer import ranks
    from glm52_tbench2.trainer.convert import export_hf, hf_names, load_hf
    from glm52_tbench2.trainer.model import build_model, wrap
    from glm52_tbench2.trainer.optimizer import build_optimizer
    from glm52_tbench2.trainer.step import TrainStep

    ranks.connect(run, dist.HashStore(), 0, 1)
    model = build_model(run)
    wrapped = wrap(model)
    load_hf(model, Path(run.model.path))
    result = TrainStep(run, wrapped, build_optimizer(run, wrapped))(make_batch(run), 1)
    found = {
        "logp": np.concatenate([scores.logp for scores in result.scores]),
        "entropy": np.concatenate([scores.entropy for scores in result.scores]),
    }
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            parts = hf_names(name, model)
            gradients = weight.main_grad.float().cpu().chunk(len(parts))
            found |= {f"gradient {p}": g.numpy() for p, g in zip(parts, gradients, strict=True)}
    for name, tensor in export_hf(model, Path(run.model.path)):
        found[f"weight {name}"] = tensor.float().cpu().numpy()
    np.savez(out, **found)
    ranks.disconnect()


def differences(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, float]:
    """By kind, the largest difference as a share of the largest value of its tensor.

    Raises ValueError when the two do not hold tensors of the same names.
    """
    if one.keys() != other.keys():
        raise ValueError(f"Only one side has {sorted(one.keys() ^ other.keys())[:5]}.")
    found = dict.fromkeys(TOLERANCES, 0.0)
    for name, values in one.items():
        kind = name.split()[0]
        largest = max(float(np.abs(values).max()), 1e-6)
        difference = float(np.abs(values - other[name]).max()) / largest
        # A NaN is a difference.
        found[kind] = max(found[kind], difference) if difference == difference else float("inf")
    return found


def check(family: ModelFamily) -> bool:
    """Computes both sides in processes of their own and prints a line a kind; whether all agree."""
    with tempfile.TemporaryDirectory() as folder:
        save_random_model(small_run(family, Device.cpu, Path(folder)))
        sides = []
        for device in (Device.cpu, Device.cuda):
            out = Path(folder) / f"{device.name}.npz"
            command = [sys.executable, "-m", "benchmarks.gpu_check", "--family", family.name]
            hidden = {"CUDA_VISIBLE_DEVICES": ""} if device is Device.cpu else {}
            subprocess.run(
                [*command, "--side", device.name, folder, str(out)],
                check=True,
                env={**os.environ, "NVIDIA_TF32_OVERRIDE": "0", **hidden},
            )
            with np.load(out) as arrays:
                sides.append(dict(arrays))
    agree = True
    for kind, difference in differences(*sides).items():
        good = difference <= TOLERANCES[kind]
        agree &= good
        verdict = "equal" if good else "DIFFERENT"
        print(f"{family.name:<16}{kind:<10}{difference:10.1e}{TOLERANCES[kind]:10.0e}  {verdict}")
    return agree


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=[family.name for family in ModelFamily])
    parser.add_argument("--side", nargs=3, metavar=("DEVICE", "WEIGHTS", "OUT"))
    args = parser.parse_args()
    if args.side:
        device, weights, out = args.side
        compute(small_run(ModelFamily[args.family], Device[device], Path(weights)), Path(out))
        return 0
    import torch

    if not torch.cuda.is_available():
        print("No GPU: torch finds no CUDA device here, so there is nothing to check.")
        return 2
    if find_spec("transformer_engine") is None:
        print("No Transformer Engine here; install transformer-engine[pytorch] to check the GPU.")
        return 2
    families = [ModelFamily[args.family]] if args.family else list(ModelFamily)
    print(f"{'family':<16}{'kind':<10}{'difference':>10}{'tolerance':>10}")
    return 0 if all([check(family) for family in families]) else 1


if __name__ == "__main__":
    sys.exit(main())
