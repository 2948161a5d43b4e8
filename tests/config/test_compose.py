"""Composing a run: the reference defaults, every overlay, and one sentence for bad input."""

import subprocess
import sys

import pytest

from glm52_tbench2.config.checks import notes
from glm52_tbench2.config.compose import compose, leaves, load_run_config, save_run_config
from glm52_tbench2.config.docs import knob_docs
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.paths import CONF
from glm52_tbench2.config.schema import Correction, Mode

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
GROUPS = sorted(
    f"{path.parent.name}={path.stem}"
    for path in CONF.glob("*/*.yaml")
    if path.parent.name != "experiment"
)

REFERENCE = {
    "data.train": "tbench2/train69",
    "data.eval": "tbench2/eval20",
    "rollout.prompts_per_step": 8,
    "rollout.samples_per_prompt": 8,
    "rollout.temperature": 0.8,
    "rollout.max_turn_tokens": 8192,
    "rollout.max_session_tokens": 65536,
    "rollout.max_turns": 30,
    "rollout.episode_timeout_s": 3600,
    "rollout.observation_chars": 4000,
    "rollout.max_concurrent_samples": 128,
    "rollout.mode": Mode.fully_async,
    "rollout.filters": ["check_no_aborted"],
    "clip.std_normalise": True,
    "clip.eps_low": 0.2,
    "clip.eps_high": 0.28,
    "clip.correction": Correction.tis,
    "clip.correction_low": 0.0,
    "clip.correction_high": 2.0,
    "clip.kl_coef": 0.0,
    "clip.entropy_coef": 0.0,
    "optim.lr": 1e-6,
    "optim.weight_decay": 0.1,
    "optim.beta1": 0.9,
    "optim.beta2": 0.98,
    "optim.steps_per_batch": 1,
    "eval.every": 10,
    "eval.samples_per_task": 2,
    "eval.temperature": 0.8,
    "steps": 100,
    "parallel.nodes": 8,
    "parallel.gpus_per_node": 4,
    "parallel.tensor": 2,
    "parallel.context": 4,
    "parallel.pipeline": 4,
    "parallel.pipeline_layers": [18, 20, 20, 20],
    "parallel.expert": 8,
    "parallel.expert_tensor": 1,
    "parallel.sequence_parallel": True,
    "parallel.max_tokens_per_rank": 8192,
    "parallel.logprob_chunk": 16384,
    "cluster.nodes": 16,
    "engine.nodes": 8,
    "engine.bucket_bytes": 2 * 2**30,
    "model.num_layers": 78,
    "model.num_experts": 256,
}


@pytest.mark.parametrize("knob", REFERENCE)
def test_the_bare_composition_is_the_reference(knob, bare):
    assert leaves(bare)[knob] == REFERENCE[knob]


@pytest.fixture(scope="module")
def bare():
    return compose([])


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes(experiment):
    assert compose([f"experiment={experiment}"]).name == experiment


@pytest.mark.parametrize("choice", GROUPS)
def test_every_group_file_fits_the_schema(choice):
    """With the smoke experiment's sizes, any single group choice is well typed."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    from glm52_tbench2.config.compose import register_schema, typed

    register_schema()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        typed(hydra_compose("config", [choice]))


def test_an_experiment_holds_overrides_only():
    """smoke differs from the reference only by what it writes, and names the groups it swaps."""
    bare, smoke = leaves(compose([])), leaves(compose(["experiment=smoke"]))
    same = ("clip.eps_high", "clip.correction", "rollout.temperature", "eval.temperature")
    assert all(bare[knob] == smoke[knob] for knob in same)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["experiment=smok"], "did you mean 'smoke'"),
        (["rollout.temprature=1"], "did you mean 'rollout.temperature'"),
        (["+rollout.temprature=1"], "did you mean 'rollout.temperature'"),
        (["eps_low=0.1"], "did you mean 'clip.eps_low'"),
        (["clipp=july"], "did you mean 'clip'"),
        (["exper=smoke"], "did you mean 'experiment'"),
        (["experiment="], "Available: job1794"),
        (["experiment=null"], "takes the name of one of its files"),
        (["=3"], "takes the name of one of its files"),
        (["smoke"], "did you mean experiment=smoke?"),
        (["mini8"], "did you mean data=mini8?"),
        (["what"], "what is not KNOB=VALUE as Hydra reads it"),
        (["name=smökë"], "name=smökë is not KNOB=VALUE"),
        (["rollout.system_prompt=Don't"], "twice"),
        (["rollout.max_turns=many"], "rollout.max_turns"),
        (["steps=0"], "steps is 0; it must be above 0"),
        (["parallel.tensor=0"], "parallel.tensor is 0; it must be above 0"),
        (["optim.weight_decay=-1"], "it must be at least 0"),
        (["optim.lr=nan"], "optim.lr is nan; write a number"),
        (["rollout.episode_timeout_s=inf"], "write a number"),
        (["optim.beta2=1"], "it must be below 1"),
        (["checkpoint.keep_last=0"], "checkpoint.keep_last is 0; it must be above 0"),
        (["checkpoint.keep_every=15"], "a checkpoint is written every 10 steps"),
        (["seed=4294967296"], "it must be below 2**32"),
        (["+engine.server_args.dtype=float16"], "server_args.dtype is decided by engine.dtype"),
        (["+engine.server_args.model_path=/x"], "server_args.model_path is decided by model.path"),
        (["engine.dtype=int4"], "float32, bfloat16, fp8"),
        (["clip.dual_clip=0.5"], "clip.dual_clip is 0.5"),
        (["clip=max_rl", "clip.overlong=penalty"], "clip.advantage=max_rl divides by"),
        (["rollout.samples_per_prompt=1"], "every advantage is 0"),
        (["experiment=smoke", "cluster=slurm", "parallel.device=cuda"], "asks for no GPU"),
        (["cluster.slurm.time_min=10"], "warning_s (600) is no less than the job's time"),
        (["+engine.server_args.port=http"], "whole number from 1 to 65"),
        (["+engine.server_args.port=65536"], "whole number from 1 to 65"),
        (["+engine.server_args.port=true"], "whole number from 1 to 65"),
        (["rollout.mode=turbo"], "rollout.mode"),
        (["rollout.filters=[nothing]"], "check_no_aborted"),
        (["clip.correction_low=3"], "swap them"),
        (["experiment=smoke", "parallel.gpus_per_node=3"], "does not divide"),
        (["parallel.pipeline_layers=[20,20,20,18]"], "index_layers"),
        (["parallel.context=3"], "do not divide"),
        (["clip.kl_coef=0.1"], "clip.kl_coef"),
        (["rollout.max_concurrent_samples=4096"], "sandbox.max_concurrent"),
        (["rollout.lag=2"], "write rollout.mode=sync"),
        (["rollout.mode=sync", "rollout.max_staleness=0"], "set it to null"),
        (["sandbox=docker"], "write cluster.fabric=127.0.0.1 on one machine"),
        (["rollout.groups_per_draw=3"], "(3) does not divide rollout.prompts_per_step"),
        (["engine.num_engines=3"], "(3) does not divide by engine.nodes (8)"),
        (["engine.num_engines=4"], "spans engine.nodes / engine.num_engines = 2 nodes"),
        (["engine=low_latency", "engine.nodes=4"], "raise engine.nodes"),
        (["experiment=smoke", "engine.nodes=3"], "model.num_heads (4); raise engine.num_engines"),
        (["sandbox=external"], "sandbox.url=http://HOST:PORT"),
        (["sandbox.url=http://127.0.0.1:8000"], "sandbox=external"),
        (["engine.transport=tensor"], "cluster.nodes is 16; write engine.transport=distributed"),
        (
            ["experiment=smoke", "engine.transport=tensor", "parallel.device=cuda"],
            "parallel.device is cuda; write engine.transport=disk",
        ),
    ],
)
def test_bad_input_gets_one_sentence(overrides, said):
    with pytest.raises(UserError) as caught:
        compose(overrides)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://host", "write it as http://HOST:PORT"),
        ("http://", "write it as http://HOST:PORT"),
        ("http://127.0.0.1:notaport", "is no URL"),
        ("http://user:s3cret@host", "holds a user, a password"),
        ("user:s3cret@host:80", "holds a user, a password"),
        ("http://user:s3cret@host:port", "holds a user, a password"),
        ("http://user:s3cret/@host", "holds a user, a password"),
        ("http://host?key=s3cret", "holds a user, a password"),
        ("http://user:s3cret", "is no URL"),
    ],
)
@pytest.mark.parametrize(
    ("overrides", "knob"),
    [
        (["sandbox=external"], "sandbox.url"),
        ([], "sandbox.url"),
        (["engine=external"], "engine.url"),
    ],
)
def test_a_url_is_one_and_its_secret_is_not_told(overrides, knob, url, said):
    with pytest.raises(UserError) as caught:
        compose(["experiment=smoke", *overrides, f'{knob}="{url}"'])
    assert f"{knob} " in str(caught.value) and said in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_an_upper_bound_may_be_taken_off():
    assert compose(["clip.correction_high=inf"]).clip.correction_high == float("inf")


def test_a_saved_config_is_read_back_whole(tmp_path):
    config = compose(["experiment=smoke", "seed=7"])
    save_run_config(config, tmp_path)
    assert load_run_config(tmp_path) == config


def test_a_folder_without_a_config_is_named(tmp_path):
    with pytest.raises(UserError, match="is not a run folder"):
        load_run_config(tmp_path)


def test_every_knob_has_a_doc_line():
    docs = knob_docs()
    assert [name for name, doc in docs.items() if not doc] == []
    assert set(leaves(compose([]))) <= set(docs)


def test_inert_clips_are_told():
    assert notes(compose([])) == []
    told = notes(compose(["clip.eps_high=0.3"]))
    assert len(told) == 1 and "clip.eps_high has no effect" in told[0]


@pytest.mark.parametrize("module", ["config", "tasks", "analysis", "cli"])
def test_light_rooms_do_not_import_torch(module):
    """`glm52 --help`, diff and composing start quickly because nothing heavy is imported."""
    code = f"import glm52_tbench2.{module}, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_hydra_shows_a_composition():
    done = subprocess.run(
        [sys.executable, "-m", "glm52_tbench2.cli", "train", "--cfg", "job", "experiment=smoke"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "name: smoke" in done.stdout
