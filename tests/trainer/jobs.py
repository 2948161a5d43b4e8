"""What the trainer's tests run on the ranks of a trainer: functions of (run, *args).

Imported in those processes alone: Megatron and what replaces CUDA for it stay out of the tests'.
"""

import ctypes
import errno
import io
import os
import signal
import threading
import traceback
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from megatron.core.extensions import transformer_engine, transformer_engine_spec_provider

from glm52_tbench2.analysis.run_files import RunFiles
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.files import SCHEMA_VERSION
from glm52_tbench2.config.schema import Device, RunConfig
from glm52_tbench2.engines.weights import fp8
from glm52_tbench2.engines.weights.folders import outgoing
from glm52_tbench2.engines.weights.sender import buckets
from glm52_tbench2.rollout.batch import Sample, batch_path, read_batch
from glm52_tbench2.trainer import attention, checkpoint, saver
from glm52_tbench2.trainer.checkpoint_files import disk_full, steps_complete
from glm52_tbench2.trainer.convert import export_hf, hf_names, load_hf
from glm52_tbench2.trainer.disk_adam.optimizer import DiskAdam
from glm52_tbench2.trainer.dsa import Indexer
from glm52_tbench2.trainer.influence.again import influence_rows
from glm52_tbench2.trainer.influence.parts import Part, Update
from glm52_tbench2.trainer.logprobs import token_scores
from glm52_tbench2.trainer.model import (
    PolicyModel,
    build_model,
    layer_specs,
    score,
    transformer_config,
    use_transformer_engine,
    wrap,
)
from glm52_tbench2.trainer.optimizer import build_optimizer, learning_rate
from glm52_tbench2.trainer.packed import Block, Packed
from glm52_tbench2.trainer.step import TrainStep
from glm52_tbench2.trainer.weights import work
from glm52_tbench2.trainer.weights.exporting import export_hf as export_hf_folder
from glm52_tbench2.trainer.weights.importing import import_hf
from glm52_tbench2.trainer.weights.layout import describe
from glm52_tbench2.trainer.weights.safetensors import content

from .parts import IDENTITY
from .storage import LiveStorage

Weights = dict[str, np.ndarray]


def _weights(run: RunConfig, model: PolicyModel) -> Weights:
    tensors = export_hf(model, Path(run.model.path))
    return {name: tensor.float().numpy().copy() for name, tensor in tensors}


class Trainer:
    """A trainer that starts from run.model.path."""

    def __init__(self, run: RunConfig) -> None:
        self.model = build_model(run)
        wrapped = wrap(self.model)
        load_hf(self.model, Path(run.model.path))
        self.optimizer = build_optimizer(run, wrapped)
        self.optimizer.reload_model_params()
        self.train = TrainStep(run, wrapped, self.optimizer)


def memory(run: RunConfig, short: list[Sample], long: list[Sample]) -> dict[str, int]:
    """Bytes of weights, gradients and optimizer state, and what a step on `long` needs beside
    them; one on `short` makes the state."""
    with LiveStorage() as live:
        model = build_model(run)
        weights = live.now
        wrapped = wrap(model)
        gradients = live.now - weights
        load_hf(model, Path(run.model.path))
        optimizer = build_optimizer(run, wrapped)
        train = TrainStep(run, wrapped, optimizer)
        train(short, 1)
        held = live.peak = live.now
        train(long, 2)
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer state": held - weights - gradients,
        "activations": live.peak - held,
    }


def logits(run: RunConfig, sequences: list[list[int]]) -> np.ndarray:
    """Logits of packed sequences, [tokens, vocabulary]."""
    model = build_model(run)
    load_hf(model, Path(run.model.path))
    tokens = torch.tensor([t for s in sequences for t in s])
    packed = Packed.of([len(s) for s in sequences], tokens.device)
    with torch.no_grad():
        return model(tokens[None], None, None, packed_seq_params=packed)[0].numpy()


def transformers_logits(run: RunConfig, sequences: list[list[int]]) -> np.ndarray:
    """The same by transformers, in this process."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(run.model.path, dtype=torch.float32)
    with torch.no_grad():
        return torch.cat([model(torch.tensor([s])).logits[0] for s in sequences]).numpy()


def shares(
    run: RunConfig, lengths: list[int], num_ranks: int
) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """Each context-parallel rank's tokens, where the whole finds them, and its pairs to attend."""
    found = []
    for rank in range(num_ranks):
        packed = Packed.of(lengths, torch.device("cpu"), num_ranks, rank)
        pairs = sum(int(block.causal_mask(torch.device("cpu")).sum()) for block in packed.blocks)
        found.append((packed.mine.numpy(), packed.order.numpy(), pairs))
    return found


def parts_on_cuda(run: RunConfig) -> list[dict[str, str]]:
    """What each layer is made of where the trainer has GPUs, by the classes' names.

    Without Transformer Engine Megatron has no such classes: empty ones take their place.
    """
    kinds = [f"{split}Parallel{kind}" for split in ("Column", "Row") for kind in ("", "Grouped")]
    names = [f"TE{kind}Linear" for kind in kinds]
    stand_ins = {name: type(name, (), {}) for name in names}
    cuda = replace(run.parallel, device=Device.cuda)
    config = transformer_config(run.model, cuda)
    block = layer_specs(config, run.model)
    with (
        mock.patch.multiple(transformer_engine, **stand_ins),
        mock.patch.multiple(transformer_engine_spec_provider, **stand_ins),
    ):
        use_transformer_engine(block, config)
    found = []
    for layer in block.layer_specs:
        attention, mlp = layer.submodules.self_attention, layer.submodules.mlp
        parts = {
            "attention": attention.module,
            "core_attention": attention.submodules.core_attention,
            "q_down": attention.submodules.linear_q_down_proj,
            "q_up": attention.submodules.linear_q_up_proj,
            "kv_up": attention.submodules.linear_kv_up_proj,
            "out": attention.submodules.linear_proj,
            "norm": layer.submodules.input_layernorm,
        }
        if hasattr(mlp.submodules, "experts"):
            parts |= {
                "experts": mlp.submodules.experts.module,
                "expert_fc1": mlp.submodules.experts.submodules.linear_fc1,
                "shared_fc2": mlp.submodules.shared_experts.submodules.linear_fc2,
            }
        else:
            parts |= {"fc1": mlp.submodules.linear_fc1, "fc2": mlp.submodules.linear_fc2}
        found.append({name: part.__name__ for name, part in parts.items()})
    assert config.moe_token_dispatcher_type == "alltoall"
    assert config.moe_grouped_gemm
    return found


def hf_names_of(run: RunConfig, name: str) -> tuple[str, ...]:
    """What a weight of the model is called in transformers' files."""
    return hf_names(name, build_model(run))


def round_trip(run: RunConfig) -> Weights:
    """The starting weights after a visit to the model."""
    model = build_model(run)
    load_hf(model, Path(run.model.path))
    return _weights(run, model)


def start_of_training(run: RunConfig) -> Weights:
    """The starting weights as a trainer has them before its first step."""
    return _weights(run, Trainer(run).model)


def choices_alive(run: RunConfig, batch: list[Sample]) -> list[int]:
    """Choices of keys that exist when the indexers of a step are called, one number a call."""
    trainer, made, alive = Trainer(run), [], []
    choose = Indexer.forward

    def counted(self: Indexer, *args: Any) -> torch.Tensor:
        alive.append(sum(reference() is not None for reference in made))
        found = choose(self, *args)
        made.append(weakref.ref(found))
        return found

    with mock.patch.object(Indexer, "forward", counted):
        trainer.train(batch, 1)
    return alive


def sparse_mask(run: RunConfig) -> tuple[np.ndarray, np.ndarray]:
    """The mask of queries that see fewer keys than are kept, and what they see."""
    part = Block(slice(0, 4), 0, 12)
    chosen = torch.arange(11)[None].repeat(4, 1)
    chosen[:2, -1] = 40  # some place of the sequence that comes later, as a fill is
    chosen[3] = torch.arange(1, 12)
    return attention._mask(part, chosen).numpy(), part.causal_mask(chosen.device).numpy()


def train(run: RunConfig, batches: list[list[Sample]]) -> tuple[list[Any], list[Any], Weights]:
    """Steps 1, 2, ... on `batches`: metrics, (logp, entropy) a sample, and the weights after."""
    trainer = Trainer(run)
    results = [trainer.train(batch, step) for step, batch in enumerate(batches, 1)]
    scores = [[(s.logp, s.entropy) for s in r.scores] for r in results]
    return [r.metrics for r in results], scores, _weights(run, trainer.model)


def train_masked(
    run: RunConfig, batch: list[Sample], masked: list[int]
) -> tuple[Any, Any, Weights]:
    """As train, one step on `batch` without the samples `masked`."""
    trainer = Trainer(run)
    result = trainer.train(batch, 1, masked)
    return [result.metrics], result.scores, _weights(run, trainer.model)


def train_non_finite(run: RunConfig, batch: list[Sample]) -> tuple[str, Weights]:
    """What a step says about `batch`, and the weights after it."""
    trainer = Trainer(run)
    try:
        trainer.train(batch, 1)
    except RuntimeError as error:
        return str(error), _weights(run, trainer.model)
    return "", {}


def decays(run: RunConfig) -> dict[str, float]:
    """The weight decay of every parameter's group."""
    trainer = Trainer(run)
    names = {id(p): name for name, p in trainer.model.named_parameters()}
    return {
        names[id(p)]: group["weight_decay"]
        for group in trainer.optimizer.param_groups
        for p in group["params"]
    }


def chunked_scores(run: RunConfig, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Scores of one sequence, and the gradient of the embedding they give."""
    model = build_model(run)
    load_hf(model, Path(run.model.path))
    inputs, labels = torch.tensor(tokens[:-1]), torch.tensor(tokens[1:])
    scores = score(model, inputs, labels, Packed.of([len(inputs)], inputs.device))
    (scores[0].sum() + scores[1].sum()).backward()
    grad = model.embedding.word_embeddings.weight.grad
    return scores.detach().numpy(), grad.numpy()


def scores_and_grad(
    run: RunConfig, logits: np.ndarray, labels: np.ndarray, grads: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """token_scores of this rank's share of the vocabulary, and its gradient."""
    rank = torch.distributed.get_rank()
    shards = torch.from_numpy(logits).chunk(torch.distributed.get_world_size(), dim=1)
    shard = shards[rank].clone().requires_grad_()
    scores = token_scores(shard, torch.from_numpy(labels), True)
    scores.backward(torch.from_numpy(grads))
    assert shard.grad is not None
    return scores.detach().numpy(), shard.grad.numpy()


def save_and_go_on(
    run: RunConfig, run_dir: Path, batches: list[list[Sample]], save_at: list[int]
) -> tuple[list[Any], Weights]:
    """Trains `batches` from the newest checkpoint, else the start; saves after the steps told."""
    trainer = Trainer(run)
    step = checkpoint.load_latest(run_dir, trainer.model, trainer.optimizer) or 0
    save = saver.Saver(run_dir, run.checkpoint, trainer.model, trainer.optimizer)
    metrics = []
    while step < len(batches):
        step += 1
        metrics.append(trainer.train(batches[step - 1], step).metrics)
        if step in save_at:
            save.save(step)
    save.wait()
    return metrics, _weights(run, trainer.model)


def sent(run: RunConfig, dtype: str, bucket_bytes: int) -> list[list[tuple[str, bytes]]]:
    """The buckets that an engine gets: names and bytes."""
    model, start = build_model(run), Path(run.model.path)
    load_hf(model, start)
    tensors = export_hf(model, start)
    if torch.distributed.get_rank() == 0:
        tensors = outgoing(tensors, start, dtype)
    return [
        [(name, bytes(content(tensor))) for name, tensor in bucket]
        for bucket in buckets(tensors, bucket_bytes)
    ]


def sending_memory(run: RunConfig, dtype: str, bucket_bytes: int) -> int:
    """How far a rank grows while it sends a model of random weights, bytes."""
    model = build_model(run)
    for tensor in model.state_dict().values():
        if torch.is_tensor(tensor):
            tensor.normal_()
    tensors = export_hf(model, Path(run.model.path))
    _free_at_once()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = _memory("VmRSS")
    for bucket in buckets(fp8.quantised(tensors) if dtype == "fp8" else tensors, bucket_bytes):
        bucket.clear()
    return _memory("VmHWM") - before


def save_start(run: RunConfig, run_dir: Path) -> None:
    """Writes a checkpoint of the starting weights."""
    trainer = Trainer(run)
    save = saver.Saver(run_dir, run.checkpoint, trainer.model, trainer.optimizer)
    save.save(1)
    save.wait()


def load_weights(run: RunConfig, folder: Path) -> Weights:
    """The weights in a checkpoint after a visit to the model."""
    model = build_model(run)
    checkpoint.load_weights(folder, model, Path(run.model.path))
    return _weights(run, model)


def store_timeout(run: RunConfig) -> float:
    """Seconds that a rank waits for what another is to put into the store."""
    return torch.distributed.distributed_c10d._get_default_store().timeout.total_seconds()


def import_weights(run: RunConfig, cut_for: RunConfig, *args: Any) -> None:
    """import_hf for the layout of `cut_for`."""
    import_hf(cut_for, *args)


def export_weights(run: RunConfig, *args: Any) -> None:
    """export_hf."""
    export_hf_folder(run, *args)


def killed(run: RunConfig, job: str, after: int, *args: Any) -> int:
    """The signal by which a process ends that is killed when it has written `after` bytes."""

    class Deadly(work.Progress):
        def add(self, count: int) -> None:
            super().add(count)
            if self._done >= after:
                os.kill(os.getpid(), signal.SIGKILL)

    def doomed() -> None:
        work.Progress = Deadly  # type: ignore[misc]
        globals()[job](run, *args)

    return os.WTERMSIG(_in_a_process(doomed))


def peak_memory(run: RunConfig, job: str, *args: Any) -> int:
    """How far a process that does `job` grows above what it has before, bytes."""
    reader, writer = os.pipe()

    def measured() -> None:
        describe(run)  # Megatron's code, and the arena that its objects came from
        _free_at_once()
        before = _memory("VmRSS")
        globals()[job](run, *args)
        os.write(writer, str(_memory("VmHWM") - before).encode())

    assert _in_a_process(measured) == 0
    return int(os.read(reader, 99))


def _free_at_once() -> None:
    """Makes malloc give back what is freed, which by itself it keeps in part."""
    ctypes.CDLL(None).mallopt(-3, 2**18)  # M_MMAP_THRESHOLD


def _memory(what: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition(f"{what}:")[2].split()[0])


def _in_a_process(do: Callable[[], None]) -> int:
    """Does it in a fork of this one; the status it ends with."""
    pid = os.fork()
    if pid == 0:
        try:
            do()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def _held_back(trainer: Trainer, released: threading.Event) -> None:
    """Makes the writing of checkpoints wait for `released`, which an update that waits sets."""
    write = saver.write_shards

    def wait_and_write(*args: Any, **kwargs: Any) -> Any:
        assert released.wait(60)
        return write(*args, **kwargs)

    saver.write_shards = wait_and_write
    for part in trainer.optimizer.chained_optimizers:
        if isinstance(part, DiskAdam):
            part.before_overwriting = partial(_release, released, part.before_overwriting)


def _release(released: threading.Event, then: Any) -> None:
    released.set()
    then()


def save_beside_training(
    run: RunConfig, run_dir: Path, batches: list[list[Sample]]
) -> tuple[list[bool], list[int]]:
    """Saves step 1, which is not written before step 3 is trained, unless an update waits for it.

    Returns whether the writing was still held back after steps 2 and 3, and the steps that were
    complete when a second save had begun.
    """
    trainer, released = Trainer(run), threading.Event()
    save = saver.Saver(run_dir, run.checkpoint, trainer.model, trainer.optimizer)
    write = saver.write_shards
    try:
        _held_back(trainer, released)
        held = []
        for step, batch in enumerate(batches, 1):
            trainer.train(batch, step)
            if step == 1:
                save.save(step)
            else:
                held.append(not released.is_set())
        released.set()
        save.save(len(batches))
        complete = steps_complete(run_dir)
        save.wait()
    finally:
        saver.write_shards = write
    return held, complete


def save_on_a_full_disk(run: RunConfig, run_dir: Path, batches: list[list[Sample]]) -> str:
    """What a save says whose last rank finds no room."""
    trainer = Trainer(run)
    save = saver.Saver(run_dir, run.checkpoint, trainer.model, trainer.optimizer)
    writer = saver.FileSystemWriter

    class Full(writer):  # type: ignore[misc, valid-type]
        def write_data(self, *args: Any) -> Any:
            if torch.distributed.get_rank() + 1 == torch.distributed.get_world_size():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write_data(*args)

    try:
        saver.FileSystemWriter = Full
        trainer.train(batches[0], 1)
        save.save(1)
        save.wait()
    except UserError as error:
        assert save.failed
        return str(error)
    finally:
        saver.FileSystemWriter = writer
    return ""


def refused(run: RunConfig, run_dir: Path | None = None) -> str:
    """What a start of the trainer says against the run or the checkpoint of `run_dir`."""
    try:
        trainer = Trainer(run)
        if run_dir is not None:
            checkpoint.load_latest(run_dir, trainer.model, trainer.optimizer)
    except UserError as error:
        return str(error)
    return ""


def newest_intact(run: RunConfig, run_dir: Path) -> int | None:
    """The checkpoint that would be loaded."""
    return checkpoint.newest_intact(run_dir)


def learning_rates(run: RunConfig, updates: int) -> list[float]:
    """The learning rate of each of the first updates."""
    return [learning_rate(run.optim, done) for done in range(updates)]


def known_full_disks(run: RunConfig, rooms: list[int]) -> list[bool]:
    """Of disks with `rooms` bytes: whether an error's text tells that they are full."""

    class Disk(io.RawIOBase):
        def __init__(self, room: int) -> None:
            self.room = room

        def write(self, data: Any) -> int:
            self.room -= len(data)
            if self.room < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return len(data)

    known = []
    for room in rooms:
        try:
            torch.save(torch.zeros(100), Disk(room))
        except (OSError, RuntimeError) as error:
            known.append(disk_full(RuntimeError(f"Worker failure: {error}")))
    return known


def record_run(run: RunConfig, run_dir: Path, steps: int, save_at: list[int]) -> None:
    """Trains the batches of `run_dir` and leaves scores and checkpoints there, as the role does."""
    trainer = Trainer(run)
    save = saver.Saver(run_dir, run.checkpoint, trainer.model, trainer.optimizer)
    (run_dir / "train").mkdir()
    for step in range(1, steps + 1):
        batch = read_batch(batch_path(run_dir, "rollouts", step))
        scores = trainer.train(batch, step).scores
        if torch.distributed.get_rank() == 0:
            columns = {
                "sample_id": [sample.sample_id for sample in batch],
                "trainer_logprobs": [one.logp for one in scores],
            }
            table = pa.table(columns).replace_schema_metadata(
                {"schema_version": SCHEMA_VERSION, "identity": IDENTITY, "step": str(step)}
            )
            pq.write_table(table, batch_path(run_dir, "train", step))
        if step in save_at:
            save.save(step)
            save.wait()


def taken_apart(
    run: RunConfig, batches: list[list[Sample]], masked: list[int]
) -> tuple[dict[Part, np.ndarray], np.ndarray]:
    """The parts of the last batch's update, and the update itself: [W] float32 over all weights."""
    trainer = Trainer(run)
    for step, batch in enumerate(batches[:-1], 1):
        trainer.train(batch, step)
    update = Update(run, trainer.train, batches[-1], len(batches), masked)
    parts = {part: _flat(change) for part, change in update.parts()}
    return parts, _flat(update.whole)


def _flat(tensors: list[torch.Tensor]) -> np.ndarray:
    return torch.cat([tensor.flatten() for tensor in tensors]).numpy().copy()


def influence_of(run: RunConfig, run_dir: Path, step: int) -> list[dict[str, Any]]:
    """The rows of `glm52 influence`."""
    return influence_rows(RunFiles.open(run_dir), IDENTITY, step, lambda line: None)
