import os
import shutil
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.fabric import fabric_address, interface_of
from glm52_tbench2.config.schema import Device, SandboxProvider, Scheduler, WandbMode
from glm52_tbench2.launch import preflight
from glm52_tbench2.tasks.sets import load_set


def only_problem(config) -> str:
    (problem,) = preflight.problems(config)
    return problem


@pytest.fixture
def without(monkeypatch):
    """Hides commands from the search path."""

    def hide(*names: str) -> None:
        real = shutil.which
        monkeypatch.setattr(
            shutil, "which", lambda name, *a, **k: None if name in names else real(name, *a, **k)
        )

    return hide


def test_the_smoke_experiment_has_nothing_in_its_way(smoke):
    assert preflight.problems(smoke) == []


def test_the_reference_without_slurm_names_the_small_experiment_in_one_sentence(without):
    without("sbatch")
    problem = only_problem(compose([]))
    assert "experiment=smoke" in problem
    assert "sbatch" in problem
    assert "\n" not in problem


@pytest.mark.parametrize("scheduler", Scheduler)
def test_a_sandbox_service_is_asked_before_anything_is_queued(smoke, monkeypatch, scheduler):
    monkeypatch.delenv("DAYTONA_API_KEY", raising=False)
    monkeypatch.setattr(preflight, "cluster_problems", lambda config: [])
    monkeypatch.setattr(shutil, "which", lambda name, *a, **k: f"/usr/bin/{name}")
    smoke.cluster.scheduler, smoke.sandbox.provider = scheduler, SandboxProvider.daytona
    assert "DAYTONA_API_KEY" in only_problem(smoke)


def test_without_bubblewrap_the_answer_says_what_to_install(tmp_path):
    code = (
        "import sys\nfrom glm52_tbench2.config.compose import compose\n"
        "from glm52_tbench2.launch.preflight import problems\n"
        "print(*problems(compose(['experiment=smoke', 'runs_dir=' + sys.argv[1]])), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "install" in done.stdout, done.stderr
    assert "bubblewrap" in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_all_problems_are_told_at_once(smoke):
    smoke.model.path = "/no/such/model"
    smoke.data.train = "mini/mini70"
    smoke.name = "a/b"
    with pytest.raises(UserError) as error:
        preflight.check(smoke)
    text = str(error.value)
    assert "/no/such/model" in text
    assert "mini/mini70" in text
    assert "a/b" in text
    assert len(text.splitlines()) == 4


def test_a_task_the_suite_lacks_is_named(smoke, tmp_path):
    some = tmp_path / "tasks"
    first, *_ = sorted(p for p in preflight.resolve(smoke.data.tasks_dir).iterdir() if p.is_dir())
    shutil.copytree(first, some / first.name)
    smoke.data.tasks_dir = str(some)
    assert "There is no task" in only_problem(smoke)


@pytest.mark.parametrize(
    ("line", "said"), [("USER bob", "knows no USER"), ("COPY nothing /app", "there is no nothing")]
)
def test_an_environment_the_sandbox_cannot_make_is_named(smoke, tmp_path, line, said):
    tasks = shutil.copytree(preflight.resolve(smoke.data.tasks_dir), tmp_path / "tasks")
    smoke.data.tasks_dir = str(tasks)
    dockerfile = tasks / load_set(smoke.data.eval).ids[0] / "environment" / "Dockerfile"
    dockerfile.write_text(f"{dockerfile.read_text()}{line}\n")
    problem = only_problem(smoke)
    assert str(dockerfile) in problem
    assert said in problem


def test_a_task_trained_and_held_out_is_refused(smoke):
    smoke.data.eval = smoke.data.train
    assert "share 69 tasks" in only_problem(smoke)


def test_half_a_model_is_refused_by_what_it_lacks(smoke, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(preflight.resolve(smoke.model.path), model)
    (model / "tokenizer.json").unlink()
    smoke.model.path = str(model)
    assert "tokenizer.json" in only_problem(smoke)


def test_a_port_in_use_is_refused(smoke):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        smoke.engine.server_args["port"] = port
        assert str(port) in only_problem(smoke)


def test_a_gpu_that_is_not_there_is_refused(smoke):
    smoke.engine.device, smoke.engine.gpus_per_engine = Device.cuda, 64
    assert "engine.device=cuda takes 64 GPUs" in only_problem(smoke)


def test_an_external_server_that_is_not_there_is_named(smoke):
    smoke.sandbox.provider, smoke.sandbox.url = SandboxProvider.external, "http://127.0.0.1:9"
    assert "sandbox.url is http://127.0.0.1:9" in only_problem(smoke)


def test_without_docker_the_answer_says_what_to_install(smoke, without):
    without("docker")
    smoke.sandbox.provider = SandboxProvider.docker
    assert "install Docker Engine" in only_problem(smoke)


def test_daytona_without_its_key_is_asked_for_it(smoke, monkeypatch):
    monkeypatch.delenv("DAYTONA_API_KEY", raising=False)
    smoke.sandbox.provider = SandboxProvider.daytona
    assert "DAYTONA_API_KEY" in only_problem(smoke)


def test_a_disk_without_room_is_refused(smoke, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=10 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert "0.0 GiB free" in only_problem(smoke)


def test_a_fabric_this_machine_is_not_on_is_refused(smoke):
    smoke.cluster.fabric = "203.0.113."
    assert "127.0.0.1" in only_problem(smoke)


def test_a_whole_address_is_not_the_start_of_another(monkeypatch):
    addresses = {
        name: [SimpleNamespace(family=socket.AF_INET, address=address)]
        for name, address in (("ib1", "10.0.0.12"), ("ib0", "10.0.0.1"))
    }
    monkeypatch.setattr("psutil.net_if_addrs", lambda: addresses)
    assert interface_of("10.0.0.1") == "ib0"
    assert fabric_address("10.") == ("10.0.0.12", "ib1")


def test_a_missing_secret_is_asked_for_by_name_and_a_present_one_is_enough(
    smoke, monkeypatch, tmp_path
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    smoke.tracking.wandb = WandbMode.online
    assert "WANDB_API_KEY" in only_problem(smoke)
    monkeypatch.setenv("WANDB_API_KEY", "s3cret")
    assert preflight.problems(smoke) == []


def test_a_model_config_that_its_folder_contradicts_is_told_before_anything_starts(smoke):
    smoke.model.num_heads = 8
    assert "has num_attention_heads = " in only_problem(smoke)


def test_knobs_without_effect_are_told_once_for_all_points_of_a_sweep(capsys):
    inert = [compose(["experiment=smoke", f"clip={name}"]) for name in ("reference", "cispo")]
    preflight.tell([*inert, *inert])
    told = capsys.readouterr().err.splitlines()
    assert len(told) == len(set(told)) == 3
    assert any(line.startswith("Note: clip.loss=cispo has no effect") for line in told)
