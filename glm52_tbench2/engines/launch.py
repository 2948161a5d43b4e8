"""Starts one SGLang server in the place of this process.

    python -m glm52_tbench2.engines.launch --run RUN --index I --host HOST --port PORT

Of an engine that spans nodes it starts the part on this node, and needs the run's supervisor.

It serves the newest weights the run has published, else the starting weights as version 0; with a
transport that goes through no folder they count as no version until the trainer sends one. It
listens on HOST alone. On a CPU the server gets this project's plugin and stand-ins on its path.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glm52_tbench2.config import load_run_config
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.schema import Device, EngineDType, RunConfig, WeightTransport
from glm52_tbench2.config.signals import Signals, SignalsLost

from .client import NO_VERSION
from .weights import fp8, tensor_shapes, to_serve

CPU = Path(__file__).parent / "cpu"
ROOT = Path(__file__).parents[2]
STAND_INS = ("triton", "torchvision", "IPython", "sgl_kernel")
DTYPES = {
    EngineDType.float32: ("--dtype", "float32"),
    EngineDType.bfloat16: ("--dtype", "bfloat16"),
    EngineDType.fp8: ("--quantization", "fp8"),
    # fp8's weights without its arithmetic, for an engine that has none.
    EngineDType.fp8_rounded: ("--dtype", "float32"),
}


def server_command(
    config: RunConfig,
    model_path: Path,
    version: int,
    host: str,
    port: int,
    *,
    scratch: Path,
    part: int = 0,
    meet: str | None = None,
) -> tuple[list[str], dict[str, str]]:
    """The server's argv, and its environment variables beside those of this process.

    `scratch` is an empty folder for its sockets. An engine that spans nodes has a `part` on each;
    they meet in the torch store at `meet`, HOST:PORT, which somebody else serves.
    """
    engine = config.engine
    # A run's fp8 comes in blocks, which SGLang takes only where it has built them at its start.
    awaits_fp8 = config.trains and engine.dtype == "fp8" and not fp8.holds_fp8(model_path)
    # Without a folder of each version it may start from weights that the trainer is past.
    told = engine.transport is WeightTransport.disk and not awaits_fp8
    if config.trains and engine.dtype == "fp8_rounded" and version == 0:
        told = False  # the starting weights are not rounded before the trainer sends them
    tag = str(version) if told else NO_VERSION
    argv = [
        *(sys.executable, "-m", "sglang.launch_server"),
        *("--model-path", str(model_path), "--weight-version", tag),
        *("--host", host, "--port", str(port)),
        *("--device", engine.device.value, *DTYPES[engine.dtype]),
        *("--random-seed", str(config.seed)),
    ]
    env = {
        "TMPDIR": str(scratch),
        # Weights are folders here; of one that is gone it would ask the hub.
        "HF_HUB_OFFLINE": "1",
        # Without it a health check takes a second and runs a greedy request among the others.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
    }
    if awaits_fp8:
        # Random weights in that shape: it generates nothing before the trainer sends version 0.
        entry = {"quantization_config": fp8.config_entry(tensor_shapes(model_path))}
        argv += ["--load-format", "dummy", "--json-model-override-args", json.dumps(entry)]
    nodes = engine.nodes_per_engine
    if engine.device is Device.cuda:
        argv += ["--tp-size", str(engine.gpus_per_engine)]
    elif nodes > 1:  # a process a node, each on any of its node's cores
        argv += ["--tp-size", str(nodes)]
        env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(["all"] * nodes)
    # A torch store of its own would listen on every interface.
    if nodes > 1:
        assert meet is not None
        argv += ["--nnodes", str(nodes), "--node-rank", str(part), "--dist-init-addr", meet]
        env |= {
            "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE": "env://",
            "MASTER_ADDR": meet.rpartition(":")[0],
            "MASTER_PORT": meet.rpartition(":")[2],
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            # Nothing needs it, and it would listen on an address that SGLang chooses.
            "SGLANG_USE_MESSAGE_QUEUE_BROADCASTER": "0",
        }
    else:
        env["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"] = f"file://{scratch}/rendezvous"
    if config.cluster.threads_per_engine:
        threads = str(config.cluster.threads_per_engine)
        env |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if host.startswith("127."):
        env["GLOO_SOCKET_IFNAME"] = "lo"
    if engine.device is Device.cpu:
        env |= cpu_env()
    for name, value in engine.server_args.items():
        argv += _flag(name.replace("_", "-"), value)
    return argv, env | engine.server_env


def cpu_env() -> dict[str, str]:
    """What makes SGLang run on a CPU, with stand-ins for the packages that are not installed."""
    missing = [name for name in STAND_INS if importlib.util.find_spec(name) is None]
    path = [CPU / "path", *(CPU / "standins" / name for name in missing), ROOT]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {
        "PYTHONPATH": os.pathsep.join([*map(str, path), *filter(None, inherited)]),
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_PLUGINS": "glm52_cpu",
        "SGLANG_EXTERNAL_MODEL_PACKAGE": "glm52_tbench2.engines.cpu.models",
        "TORCHDYNAMO_DISABLE": "1",
    }


def _flag(name: str, value: Any) -> list[str]:
    if name == "port" or value is None or value is False:
        return []
    if value is True:
        return [f"--{name}"]
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return [f"--{name}", *map(str, values)]


def scratch_dir(run_dir: Path, index: int, part: int = 0) -> Path:
    """Folder of an engine's sockets on one node, outside the run folder: their paths must be short.

    Emptied when the engine starts; whoever ends the engine removes it.
    """
    name = hashlib.sha256(f"{run_dir.resolve()} {index}.{part}".encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"glm52-engine-{os.getuid()}-{name}"


def remove_scratch(run_dir: Path, index: int, part: int = 0) -> None:
    """Removes that folder, once the engine has ended."""
    shutil.rmtree(scratch_dir(run_dir, index, part), ignore_errors=True)


def agree(
    config: RunConfig, run_dir: Path, index: int, part: int, generation: int, meet: str | None
) -> tuple[Path, int, str]:
    """(weights, version, HOST:PORT to meet at): what the parts of an engine over nodes start from.

    The first part says it and the others wait, since each might find other weights for itself.
    Raises TimeoutError when the first says nothing.
    """
    signals, key = Signals.from_env(), f"rendezvous/engine/{index}/{generation}"
    if part == 0:
        folder, version = to_serve(config, run_dir)
        signals.publish(key, json.dumps([str(folder), version, meet]))
        return folder, version, str(meet)
    wait_s = config.cluster.deadlines.engine / 2  # so that it ends before its own deadline
    try:
        folder, version, meet = json.loads(signals.wait(key, wait_s))
    except TimeoutError:
        raise TimeoutError(
            f"engine-{index}, which the other parts of that engine start with, did not start "
            f"within {wait_s:g} s (half of cluster.deadlines.engine); see its log."
        ) from None
    return Path(folder), version, str(meet)


def main(arguments: Sequence[str] | None = None) -> None:
    """Becomes the server. Exits with 2 and one sentence on bad input."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="run folder")
    parser.add_argument("--index", type=int, required=True, help="number of the engine in the run")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--part", type=int, default=0, help="of an engine that spans nodes")
    parser.add_argument("--generation", type=int, default=0, help="which start of such an engine")
    parser.add_argument("--meet", help="HOST:PORT of a store where its parts meet, for the first")
    given = parser.parse_args(arguments)
    meet: str | None = None
    try:
        config = load_run_config(given.run)
        if config.engine.nodes_per_engine > 1:
            model_path, version, meet = agree(
                config, given.run, given.index, given.part, given.generation, given.meet
            )
        else:
            model_path, version = to_serve(config, given.run)
        if not (model_path / "config.json").is_file():
            raise UserError(f"{model_path} has no config.json; point model.path to an HF folder.")
        scratch = scratch_dir(given.run, given.index, given.part)
        argv, env = server_command(
            config,
            model_path,
            version,
            given.host,
            given.port,
            scratch=scratch,
            part=given.part,
            meet=meet,
        )
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except (TimeoutError, SignalsLost) as error:
        sys.exit(f"error: {error}")
    remove_scratch(given.run, given.index, given.part)
    scratch.mkdir(mode=0o700)
    os.execvpe(argv[0], argv, {**os.environ, **env})


if __name__ == "__main__":
    main()
