import sys

import pytest

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.schema import Device, WandbMode
from glm52_tbench2.launch.placement import place
from glm52_tbench2.launch.ports import free_port, is_free


def by_name(specs):
    return {spec.name: spec for spec in specs}


def test_the_roles_of_a_small_run(smoke, tmp_path):
    assert [spec.name for spec in place(smoke, tmp_path)] == [
        "env",
        "engine-0",
        "trainer-0",
        "driver",
        "tracker",
    ]


def test_a_role_is_the_projects_own_module_on_the_run_folder(smoke, tmp_path):
    engine = by_name(place(smoke, tmp_path))["engine-0"]
    assert engine.command == (
        *(sys.executable, "-m", "glm52_tbench2.engines.launch", "--run", str(tmp_path)),
        *("--index", "0", "--host", "{host}", "--port", "{port}"),
    )


def test_trainer_ranks_are_numbered_and_meet_in_the_supervisors_store(smoke, tmp_path):
    smoke.parallel.gpus_per_node = 2
    specs = by_name(place(smoke, tmp_path))
    env = specs["trainer-1"].env
    assert (env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"]) == ("1", "1", "2")
    assert env["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    assert env["GLOO_SOCKET_IFNAME"] == "lo"
    assert env["OMP_NUM_THREADS"] == str(smoke.cluster.threads_per_trainer)


def test_engines_take_the_gpus_after_the_trainers(smoke, tmp_path):
    smoke.parallel.device, smoke.parallel.gpus_per_node = Device.cuda, 2
    smoke.engine.device, smoke.engine.num_engines, smoke.engine.gpus_per_engine = Device.cuda, 2, 2
    specs = by_name(place(smoke, tmp_path))
    assert specs["engine-0"].env["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert specs["engine-1"].env["CUDA_VISIBLE_DEVICES"] == "4,5"


def test_a_run_that_is_not_tracked_has_no_tracker(smoke, tmp_path):
    smoke.tracking.wandb = WandbMode.disabled
    assert "tracker" not in by_name(place(smoke, tmp_path))


def test_a_given_port_counts_up_over_the_engines(smoke, tmp_path):
    smoke.engine.server_args["port"], smoke.engine.num_engines = 30000, 2
    specs = by_name(place(smoke, tmp_path))
    assert (specs["engine-0"].port, specs["engine-1"].port) == (30000, 30001)


def test_a_fabric_without_an_address_here_fails_by_name(smoke, tmp_path):
    smoke.cluster.fabric = "203.0.113."
    with pytest.raises(UserError, match=r"203\.0\.113\."):
        place(smoke, tmp_path)


def test_ports_are_never_given_twice():
    ports = [free_port("127.0.0.1") for _ in range(50)]
    assert len(set(ports)) == 50
    assert all(is_free("127.0.0.1", port) for port in ports)


def test_a_server_gets_its_port_back():
    port = free_port("127.0.0.1")
    assert free_port("127.0.0.1", prefer=port) == port
