"""The command lines of the server."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from glm52_tbench2.config import save_run_config
from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.schema import RunConfig, WeightTransport
from glm52_tbench2.config.signals import Signals
from glm52_tbench2.engines import launch, weights
from glm52_tbench2.engines.launch import server_command
from glm52_tbench2.engines.weights import tensor_shapes
from glm52_tbench2.engines.weights.fp8 import config_entry

REFERENCE = """
--weight-version none --load-format dummy --host 10.0.0.5 --port 30000
--device cuda --quantization fp8 --random-seed 1
"""
COMMON = """
--kv-cache-dtype fp8_e4m3 --mem-fraction-static 0.85
--attention-backend dsa --dsa-prefill-backend flashmla_sparse --dsa-decode-backend flashmla_kv
--page-size 64 --cuda-graph-max-bs-decode 32 --watchdog-timeout 3600
--tool-call-parser glm47 --reasoning-parser glm45
"""
BALANCED = f"""{REFERENCE}
--tp-size 4
--attn-dp-size 4 --ep-size 4 --moe-a2a-backend deepep
--speculative-algorithm EAGLE --speculative-num-steps 1 --speculative-eagle-topk 1
--speculative-num-draft-tokens 2
--max-running-requests 256 --chunked-prefill-size 32768 {COMMON}
"""
LOW_LATENCY = f"""{REFERENCE}
--tp-size 8 --nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.5:25000
--moe-runner-backend flashinfer_trtllm_routed
--speculative-algorithm EAGLE --speculative-num-steps 5 --speculative-eagle-topk 1
--speculative-num-draft-tokens 6
--max-running-requests 512 --chunked-prefill-size 16384 {COMMON}
"""
GOLDEN = {"balanced": BALANCED, "low_latency": LOW_LATENCY}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Starting weights in bfloat16: a layer in fp8, its router and the head not."""
    made = tmp_path / "GLM-5.2"
    made.mkdir()
    (made / "config.json").write_text("{}")
    names = (
        "model.layers.0.mlp.gate.weight",
        "model.layers.0.mlp.down_proj.weight",
        "lm_head.weight",
    )
    weights = {name: torch.zeros(2, 2, dtype=torch.bfloat16) for name in names}
    save_file({**weights, "model.norm.weight": torch.zeros(2)}, made / "model.safetensors")
    return made


def reference(engine: str, folder: Path, **changes: Any) -> tuple[list[str], dict[str, str]]:
    """The second part of an engine, if it spans two nodes; with knobs of the engine changed."""
    config = compose([f"engine={engine}"])
    part, meet = (1, "10.0.0.5:25000") if engine == "low_latency" else (0, None)
    steps = changes.pop("steps", config.steps)
    return server_command(
        replace(config, steps=steps, engine=replace(config.engine, **changes)),
        folder,
        12,
        "10.0.0.5",
        30000,
        scratch=Path("/tmp/s"),
        part=part,
        meet=meet,
    )


def options(argv: list[str]) -> dict[str, list[str]]:
    """Option -> its values."""
    found: dict[str, list[str]] = {}
    for word in argv:
        if word.startswith("--"):
            name = word
            found[name] = []
        else:
            found[name].append(word)
    return found


def smoke(*overrides: str) -> RunConfig:
    return compose(["experiment=smoke", *overrides])


def cpu_command(*overrides: str) -> tuple[list[str], dict[str, str]]:
    return server_command(
        smoke(*overrides), Path("/m"), 0, "127.0.0.1", 4000, scratch=Path("/tmp/s")
    )


@pytest.mark.parametrize("engine", GOLDEN)
def test_reference_command_line(engine: str, folder: Path) -> None:
    argv, _ = reference(engine, folder)
    assert argv[:3] == [sys.executable, "-m", "sglang.launch_server"]
    found = options(argv[3:])
    assert found.pop("--model-path") == [str(folder)]
    assert json.loads(found.pop("--json-model-override-args")[0]) == {
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"],
        }
    }
    assert found == options(GOLDEN[engine].split())


def test_an_fp8_engine_is_built_for_blocks_until_they_are_there(folder: Path) -> None:
    def waits(**changes: Any) -> bool:
        argv, _ = reference("balanced", folder, transport=WeightTransport.disk, **changes)
        tag = argv[argv.index("--weight-version") + 1]
        assert ("dummy" in argv) == ("--json-model-override-args" in argv) == (tag == "none")
        return "dummy" in argv

    assert waits()
    assert not waits(steps=0)  # nobody would send an evaluation weights
    assert not waits(dtype="bfloat16")
    entry = {"quantization_config": config_entry(tensor_shapes(folder))}
    (folder / "config.json").write_text(json.dumps(entry))
    assert not waits()


@pytest.mark.parametrize("engine", GOLDEN)
def test_reference_fills_its_nodes(engine: str) -> None:
    config = compose([f"engine={engine}"]).engine
    assert (config.nodes, config.num_engines * config.gpus_per_engine) == (8, 32)


def test_reference_server_gets_nothing_of_the_cpu(folder: Path) -> None:
    _, env = reference("balanced", folder)
    assert not {"PYTHONPATH", "SGLANG_USE_CPU_ENGINE", "SGLANG_PLUGINS"} & env.keys()


def test_an_engine_over_nodes_meets_in_a_store_that_is_served_for_it(folder: Path) -> None:
    _, env = reference("low_latency", folder)
    assert env["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"] == "env://"
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.5", "25000")
    assert env["TORCHELASTIC_USE_AGENT_STORE"] == "True"  # else the first part would serve one


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[Signals]:
    served, address = Signals.serve("127.0.0.1")
    served.open()
    monkeypatch.setenv("GLM52_STORE", address)
    yield served


def test_parts_of_an_engine_start_from_the_same_weights(tmp_path: Path, signals: Signals) -> None:
    config = smoke()
    first = launch.agree(config, tmp_path, 0, 0, 3, "127.0.0.1:9")
    newer = tmp_path / "weights" / "version_000001"
    newer.mkdir(parents=True)
    (newer / "version.json").write_text(json.dumps({"version": 1}))
    assert launch.agree(config, tmp_path, 0, 1, 3, None) == first
    assert first == (launch.ROOT / config.model.path, 0, "127.0.0.1:9")


def test_a_part_that_waits_in_vain_names_whom_it_waited_for(
    tmp_path: Path, signals: Signals
) -> None:
    config = smoke("cluster.deadlines.engine=0.2")
    launch.agree(config, tmp_path, 2, 0, 0, "127.0.0.1:9")  # of the start before
    with pytest.raises(TimeoutError, match=r"^engine-2, .* cluster\.deadlines\.engine"):
        launch.agree(config, tmp_path, 2, 1, 1, None)


def test_sglang_takes_every_argument(folder: Path) -> None:
    commands = [reference(engine, folder)[0] for engine in GOLDEN] + [cpu_command()[0]]
    code = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
for command in json.loads(sys.argv[1]):
    parser.parse_args(command)
print("taken")
"""
    arguments = [argv[3:] for (argv,) in zip(commands, strict=True)]
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(arguments)],
        env={**os.environ, **launch.cpu_env()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip().endswith("taken"), done.stderr[-2000:]


def test_stand_ins_only_for_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = launch.importlib.util.find_spec
    monkeypatch.setattr(
        launch.importlib.util, "find_spec", lambda name: name if name == "triton" else real(name)
    )
    _, env = cpu_command()
    path = env["PYTHONPATH"].split(os.pathsep)
    assert not [entry for entry in path if entry.endswith("standins/triton")]
    assert [entry for entry in path if entry.endswith("standins/sgl_kernel")]


def test_threads_of_an_engine_are_those_of_the_config() -> None:
    _, env = cpu_command("cluster.threads_per_engine=3")
    assert (env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"]) == ("3", "3")


def test_server_env_of_the_config_comes_last() -> None:
    _, env = cpu_command("+engine.server_env.TORCHDYNAMO_DISABLE='0'")
    assert env["TORCHDYNAMO_DISABLE"] == "0"


def test_server_args_may_be_flags_lists_or_absent() -> None:
    config = smoke()
    config.engine.server_args = {
        "a-flag": True,
        "no_flag": False,
        "nothing": None,
        "some": [1, 2],
        "port": 9,
    }
    argv, _ = server_command(config, Path("/m"), 0, "127.0.0.1", 4000, scratch=Path("/tmp/s"))
    assert options(argv[3:])["--a-flag"] == []
    assert options(argv[3:])["--some"] == ["1", "2"]
    assert options(argv[3:])["--port"] == ["4000"]
    assert not {"--no-flag", "--nothing"} & options(argv[3:]).keys()


def test_engine_starts_from_the_newest_published_weights(tmp_path: Path) -> None:
    config = smoke()
    assert weights.to_serve(config, tmp_path) == (launch.ROOT / config.model.path, 0)
    for version in (3, 12):
        folder = tmp_path / "weights" / f"version_{version:06d}"
        folder.mkdir(parents=True)
        (folder / "version.json").write_text(json.dumps({"version": version}))
    assert weights.to_serve(config, tmp_path) == (tmp_path / "weights/version_000012", 12)


def test_weights_elsewhere_have_a_folder_for_each_run(tmp_path: Path) -> None:
    config = smoke("engine.weights_dir=/dev/shm/glm52")
    first = weights.weights_dir(config, tmp_path / "sweep-1" / "seed=1")
    assert first.parent == Path("/dev/shm/glm52") and first.name.startswith("seed-1-")
    assert first == weights.weights_dir(config, tmp_path / "sweep-2" / ".." / "sweep-1" / "seed=1")
    assert first != weights.weights_dir(config, tmp_path / "sweep-2" / "seed=1")


def test_missing_weights_are_one_sentence_and_code_2(tmp_path: Path) -> None:
    save_run_config(smoke("model.path=nowhere"), tmp_path)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "glm52_tbench2.engines.launch", "--run", str(tmp_path)),
            *("--index", "0", "--host", "127.0.0.1", "--port", "4000"),
        ],
        cwd=launch.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.strip().endswith("has no config.json; point model.path to an HF folder.")
    assert len(done.stderr.strip().splitlines()) == 1
