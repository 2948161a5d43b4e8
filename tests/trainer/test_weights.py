"""Weights of any size as a checkpoint, and back."""

import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.engines.weights import fp8
from glm52_tbench2.trainer.weights import work
from glm52_tbench2.trainer.weights.safetensors import Folder, content
from glm52_tbench2.trainer.weights.work import Work

from .parts import layout

FILE_BYTES = 100_000
MEBI = 2**20


def wide(run):
    """TP2 x PP2 x EP2."""
    parallel = {"tensor": 2, "pipeline": 2, "pipeline_layers": [1, 2], "expert": 2}
    return layout(run, 4, sequence_parallel=True, **parallel)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def hashes(folder):
    return {path.name: sha256(path) for path in folder.iterdir() if path.is_file()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor.float().numpy(), err_msg=name)


@pytest.fixture(scope="module")
def imported(ranks, run, start_weights, tmp_path_factory):
    """The starting weights as a checkpoint cut for TP2 x PP2 x EP2."""
    target = tmp_path_factory.mktemp("imported") / "checkpoint"
    ranks(run, "import_weights", wide(run), start_weights, target, FILE_BYTES)
    return target


@pytest.fixture
def folder(start_weights, tmp_path):
    """A copy of the starting weights, to be damaged."""
    return shutil.copytree(start_weights, tmp_path / "folder")


@pytest.mark.parametrize(
    "parallel",
    [
        {},
        {"tensor": 2, "sequence_parallel": True, "expert": 2},
        {"tensor": 2, "sequence_parallel": True, "expert_tensor": 2},
        {"pipeline": 2, "pipeline_layers": [2, 1]},
    ],
    ids=["one", "tensor", "tensor-expert", "pipeline"],
)
def test_every_layout_loads_an_imported_checkpoint(ranks, run, start_weights, imported, parallel):
    found = ranks(layout(run, 2 if parallel else 1, **parallel), "load_weights", imported)[0]
    assert_same(found, load_file(start_weights / "model.safetensors"))


def test_an_imported_checkpoint_is_one_of_the_trainer(ranks, run, imported, tmp_path):
    run_dir = tmp_path / "run"
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "checkpoints/step_000000").symlink_to(imported)
    assert ranks(run, "newest_intact", run_dir) == [0]
    assert len(list(imported.glob("*.distcp"))) > 5
    assert not list(imported.parent.glob("*.partial"))


def test_what_is_exported_is_the_source_to_the_bit(ranks, run, start_weights, imported, tmp_path):
    ranks(run, "export_weights", imported, tmp_path / "back")
    sums = (tmp_path / "back/SHA256SUMS").read_text().split()
    assert sums == [sha256(start_weights / "model.safetensors"), "model.safetensors"]
    (tmp_path / "back/SHA256SUMS").unlink()
    assert hashes(tmp_path / "back") == hashes(start_weights)


def test_a_checkpoint_of_a_run_is_exported_from_any_layout(ranks, run, start_weights, tmp_path):
    two = layout(run, 2, tensor=2, sequence_parallel=True, expert_tensor=2)
    ranks(two, "save_start", tmp_path)
    ranks(run, "export_weights", tmp_path / "checkpoints/step_000001", tmp_path / "back")
    assert sha256(tmp_path / "back/model.safetensors") == sha256(
        start_weights / "model.safetensors"
    )


def test_a_layer_the_model_lacks_comes_from_the_starting_weights(
    ranks, run, start_weights, imported, folder, tmp_path
):
    tensors = load_file(start_weights / "model.safetensors")
    extra = {"model.layers.3.eh_proj.weight": torch.randn(4, 6).bfloat16()}
    save_file(extra, folder / "mtp.safetensors")
    with_it = replace(run, model=replace(run.model, path=str(folder)))
    ranks(with_it, "export_weights", imported, tmp_path / "back")
    assert sha256(tmp_path / "back/mtp.safetensors") == sha256(folder / "mtp.safetensors")
    found = load_file(tmp_path / "back/model.safetensors")
    assert_same(found, tensors)


def test_exported_in_fp8_it_is_what_the_engines_get(ranks, run, start_weights, imported, tmp_path):
    ranks(run, "export_weights", imported, tmp_path / "back", "fp8")
    found = load_file(tmp_path / "back/model.safetensors")
    expected = dict(fp8.quantised(load_file(start_weights / "model.safetensors").items()))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name
    assert fp8.holds_fp8(tmp_path / "back")


IN_TWO = {
    "tensor": {"tensor": 2, "sequence_parallel": True, "expert_tensor": 2},
    "pipeline": {"pipeline": 2, "pipeline_layers": [1, 2]},
    "expert": {"expert": 2},
}
every_two = pytest.mark.parametrize("parallel", IN_TWO.values(), ids=IN_TWO)


@every_two
def test_in_fp8_every_layout_sends_the_blocks_of_whole_weights(ranks, run, parallel):
    found, nothing = ranks(layout(run, 2, **parallel), "sent", "fp8", 20_000)
    assert not nothing
    source = load_file(Path(run.model.path) / "model.safetensors")
    expected = {name: bytes(content(t)) for name, t in fp8.quantised(source.items())}
    assert dict(itertools.chain(*found)) == expected
    for bucket in found:
        size = sum(len(data) for _, data in bucket)
        assert size <= 20_000 or len(bucket) == 1 or all("self_attn" in name for name, _ in bucket)


@every_two
@pytest.mark.parametrize("dtype", ["float32", "fp8"])
def test_a_rank_that_sends_grows_by_no_more_than_a_bucket(ranks, run, parallel, dtype):
    wide = replace(run, model=replace(run.model, expert_ffn_size=2**14))
    bucket = 24 * MEBI
    found = ranks(layout(wide, 2, **parallel), "sending_memory", dtype, bucket)
    weight = 2 * 2**14 * 48 * 4  # gate and up of an expert
    assert found[0] < bucket + 4 * weight + 4 * MEBI
    assert found[1] < weight + 4 * MEBI


def test_an_import_that_is_killed_goes_on(ranks, run, start_weights, imported, tmp_path):
    target = tmp_path / "checkpoint"
    args = (wide(run), start_weights, target, FILE_BYTES)
    ended = ranks(run, "killed", "import_weights", 4 * FILE_BYTES, *args)
    assert ended == [signal.SIGKILL]
    partial = tmp_path / "checkpoint.partial"
    first, second = partial / "__0_0.distcp", partial / "__1_0.distcp"
    kept = first.stat()
    with second.open("r+b") as file:
        file.seek(1000)
        file.write(b"damaged")
    assert not target.exists()
    ranks(run, "import_weights", *args)
    assert (target / "__0_0.distcp").stat().st_mtime_ns == kept.st_mtime_ns
    made, expected = hashes(target), hashes(imported)
    # Pickled, it tells which strings were one object.
    assert {name for name in expected if made[name] != expected[name]} <= {".metadata", "STABLE"}
    assert_same(
        ranks(run, "load_weights", target)[0], load_file(start_weights / "model.safetensors")
    )


def test_an_export_that_is_killed_goes_on(ranks, run, start_weights, imported, folder, tmp_path):
    save_file({"model.layers.3.eh_proj.weight": torch.ones(4)}, folder / "a.safetensors")
    with_it = replace(run, model=replace(run.model, path=str(folder)))
    args = (imported, tmp_path / "back")
    assert ranks(with_it, "killed", "export_weights", FILE_BYTES, *args) == [signal.SIGKILL]
    kept = (tmp_path / "back.partial/a.safetensors").stat()
    ranks(with_it, "export_weights", *args)
    assert (tmp_path / "back/a.safetensors").stat().st_mtime_ns == kept.st_mtime_ns
    source = start_weights / "model.safetensors"
    assert sha256(tmp_path / "back/model.safetensors") == sha256(source)


def test_neither_holds_more_than_two_of_the_largest_tensor(ranks, run, folder, tmp_path):
    model = replace(run.model, path=str(folder), vocab_size=2**18, dense_ffn_size=2**18)
    big = replace(run, model=model)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if "layers.0.mlp" in name or name in ("lm_head.weight", "model.embed_tokens.weight"):
            down = "down_proj" in name
            tensors[name] = torch.rand(tensor.shape[0] if down else 2**18, 2**18 if down else 48)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_bytes())
    config |= {"vocab_size": 2**18, "intermediate_size": 2**18}
    (folder / "config.json").write_text(json.dumps(config))
    largest = tensors["lm_head.weight"].nbytes
    assert sum(tensor.nbytes for tensor in tensors.values()) > 5 * largest
    two = layout(big, 1, tensor=2, sequence_parallel=True)
    args = (two, folder, tmp_path / "checkpoint")
    assert ranks(big, "peak_memory", "import_weights", *args)[0] < 2 * largest + 8 * MEBI
    args = (tmp_path / "checkpoint", tmp_path / "back")
    assert ranks(big, "peak_memory", "export_weights", *args)[0] < 2 * largest + 8 * MEBI
    assert sha256(tmp_path / "back/model.safetensors") == sha256(folder / "model.safetensors")


@pytest.mark.parametrize("change", ["another tensor", "a fine-tune"])
def test_a_checkpoint_of_other_weights_is_not_loaded(ranks, run, imported, folder, change):
    if change == "another tensor":
        changes = {"model.layers.3.eh_proj.weight": torch.zeros(4, 6)}
    else:
        tensors = load_file(folder / "model.safetensors")
        changes = {name: tensor * 1.01 for name, tensor in tensors.items()}
    edited(folder, **changes)
    other = replace(run, model=replace(run.model, path=str(folder)))
    with pytest.raises(AssertionError, match=r"UserError: model\.checkpoint .* was not made of"):
        ranks(other, "load_weights", imported)


# --- bad input -----------------------------------------------------------------------------------


def edited(folder, **changes):
    """Tensors of the folder changed; None: left out."""
    tensors = load_file(folder / "model.safetensors") | changes
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")


def lose_a_tensor(folder):
    edited(folder, **{"model.layers.1.mlp.experts.3.up_proj.weight": None})


def change_a_shape(folder):
    edited(folder, **{"model.norm.weight": torch.zeros(49)})


def quantise_a_tensor(folder):
    edited(folder, **{"lm_head.weight": torch.zeros(256, 48).to(torch.float8_e4m3fn)})


def mix_precisions(folder):
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    edited(folder, **{name: torch.zeros(32, 48).bfloat16()})


def change_the_model(folder):
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | {"routed_scaling_factor": 3.0}))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lose_a_tensor, r"lacks the tensor model\.layers\.1\.mlp\.experts\.3\.up_proj\.weight"),
        (change_a_shape, r"model\.norm\.weight has shape \[49\].* \[48\]"),
        (quantise_a_tensor, r"lm_head\.weight is float8_e4m3fn; name a folder"),
        (mix_precisions, r"experts\.3\.up_proj\.weight is in another precision"),
        (change_the_model, r"routed_scaling_factor = 3\.0"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_folder_of_something_else_is_refused(ranks, run, folder, tmp_path, damage, told):
    damage(folder)
    with pytest.raises(AssertionError, match=rf"UserError: .*{told}"):
        ranks(run, "import_weights", run, folder, tmp_path / "checkpoint")
    assert not list(tmp_path.glob("checkpoint*"))


def cut_a_file(folder):
    os.truncate(folder / "model.safetensors", 10_000)


def garble_a_file(folder):
    (folder / "model.safetensors").write_bytes(b"\x09\0\0\0\0\0\0\0{garbled}")


def lose_a_file(folder):
    index = {"weight_map": {"lm_head.weight": "model-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def lose_all_files(folder):
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (cut_a_file, r"has 10000 bytes, but its header describes \d+: it is cut short"),
        (garble_a_file, r"is cut short or no safetensors file"),
        (lose_a_file, r"puts lm_head\.weight in model-00002\.safetensors, which is missing"),
        (lose_all_files, r"holds no \*\.safetensors file"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_damaged_folder_is_refused(folder, damage, told):
    damage(folder)
    with pytest.raises(UserError, match=told):
        Folder(folder)


def test_a_header_cut_short_is_refused(folder):
    os.truncate(folder / "model.safetensors", 100)
    with pytest.raises(UserError, match="is cut short or no safetensors file"):
        Folder(folder)


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "common.pt"])
def test_a_damaged_checkpoint_is_not_exported(ranks, run, imported, tmp_path, name):
    checkpoint = shutil.copytree(imported, tmp_path / "checkpoint")
    with (checkpoint / name).open("ab") as file:
        file.write(b"more")
    with pytest.raises(AssertionError, match=rf"UserError: .*{name} is not what was written"):
        ranks(run, "export_weights", checkpoint, tmp_path / "back")
    (checkpoint / name).unlink()
    with pytest.raises(AssertionError, match=rf"UserError: .*{name} is missing"):
        ranks(run, "export_weights", checkpoint, tmp_path / "back")
    assert not list(tmp_path.glob("back*"))


def test_a_checkpoint_of_another_model_is_not_exported(ranks, run, imported, tmp_path):
    fewer = replace(run, model=replace(run.model, num_dense_layers=2))
    shutil.copytree(run.model.path, tmp_path / "start")
    config = json.loads((tmp_path / "start/config.json").read_bytes())
    config |= {"mlp_layer_types": ["dense", "dense", "sparse"], "first_k_dense_replace": 2}
    (tmp_path / "start/config.json").write_text(json.dumps(config))
    fewer.model.path = str(tmp_path / "start")
    with pytest.raises(AssertionError, match=r"UserError: .*layers\.1\.mlp\.linear_fc1"):
        ranks(fewer, "export_weights", imported, tmp_path / "back")


def test_an_import_that_was_not_finished_is_named_as_that(tmp_path):
    (tmp_path / "checkpoint.partial").mkdir()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "glm52_tbench2.cli", "weights", "export"),
            *(tmp_path / "checkpoint", tmp_path / "back", "experiment=smoke"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"{tmp_path / 'checkpoint'} was not finished; run the same glm52 weights import again, "
        "which goes on where it was stopped."
    ]


def test_work_begun_otherwise_is_not_gone_on_with(tmp_path):
    Work(tmp_path / "a", {"of": "x"}, 10, "import")
    Work(tmp_path / "a", {"of": "x"}, 10, "import")
    with pytest.raises(UserError, match=r"a\.partial was begun with other weights"):
        Work(tmp_path / "a", {"of": "y"}, 10, "import")
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError, match="b is there already"):
        Work(tmp_path / "b", {"of": "x"}, 10, "import")


def test_a_disk_too_small_is_told_before_the_start(tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(work.shutil, "disk_usage", lambda path: usage(50 * 10**9))
    with pytest.raises(UserError, match=r"50\.0 GB free, but 60\.0 GB are to be written"):
        Work(tmp_path / "a", {}, 60 * 10**9, "import")
    Work(tmp_path / "b", {}, 40 * 10**9, "import")
