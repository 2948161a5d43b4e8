import sys

import pytest

from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.schema import Device, SandboxProvider, WandbMode
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
    assert env["GLOO_SOCKET_IFNAME"] == "{interface}"  # of the node that starts it
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


def test_a_run_with_an_external_environment_server_starts_none(smoke, tmp_path):
    smoke.sandbox.provider, smoke.sandbox.url = SandboxProvider.external, "http://127.0.0.1:8000"
    assert "env" not in by_name(place(smoke, tmp_path))


def test_a_given_port_counts_up_over_the_engines(smoke, tmp_path):
    smoke.engine.server_args["port"], smoke.engine.num_engines = 30000, 2
    specs = by_name(place(smoke, tmp_path))
    assert (specs["engine-0"].port, specs["engine-1"].port) == (30000, 30001)


def test_ports_are_never_given_twice():
    ports = [free_port("127.0.0.1") for _ in range(50)]
    assert len(set(ports)) == 50
    assert all(is_free("127.0.0.1", port) for port in ports)


def test_a_server_gets_its_port_back():
    port = free_port("127.0.0.1")
    assert free_port("127.0.0.1", prefer=port) == port


@pytest.mark.parametrize(
    ("overrides", "nodes"),
    [
        ([], {0: {"env", "engine-0", "trainer-0", "driver", "tracker"}}),
        (
            ["cluster.nodes=3", "cluster.driver_node=2"],
            {0: {"trainer-0"}, 1: {"engine-0"}, 2: {"env", "driver", "tracker"}},
        ),
        (
            [
                "cluster.nodes=4",
                "cluster.driver_node=1",
                "parallel.nodes=2",
                "engine.nodes=2",
                "engine.num_engines=4",
            ],
            {
                0: {"trainer-0"},
                1: {"trainer-1", "env", "driver", "tracker"},
                2: {"engine-0", "engine-1"},
                3: {"engine-2", "engine-3"},
            },
        ),
    ],
)
def test_roles_are_spread_over_the_nodes(overrides, nodes, tmp_path):
    specs = place(compose(["experiment=smoke", "cluster=slurm", *overrides]), tmp_path)
    found = {node: {s.name for s in specs if s.node == node} for node in {s.node for s in specs}}
    assert found == nodes


def test_on_its_own_node_an_engine_starts_at_the_first_gpu(tmp_path):
    specs = by_name(place(compose([]), tmp_path))
    assert specs["engine-0"].node == 8 and specs["engine-7"].node == 15
    assert {specs[f"engine-{i}"].env["CUDA_VISIBLE_DEVICES"] for i in range(8)} == {"0,1,2,3"}
    assert specs["trainer-31"].node == 7 and specs["trainer-31"].env["LOCAL_RANK"] == "3"


def test_an_engine_over_nodes_has_a_part_with_all_gpus_on_each(tmp_path):
    specs = by_name(place(compose(["engine=low_latency"]), tmp_path))
    parts = {name: spec for name, spec in specs.items() if spec.role == "engine"}
    assert {name: spec.node for name, spec in parts.items()} == {
        **{"engine-0": 8, "engine-0.1": 9, "engine-1": 10, "engine-1.1": 11},
        **{"engine-2": 12, "engine-2.1": 13, "engine-3": 14, "engine-3.1": 15},
    }
    assert {spec.env["CUDA_VISIBLE_DEVICES"] for spec in parts.values()} == {"0,1,2,3"}
    assert {spec.endpoint_key for spec in parts.values() if spec.part == 0} == {
        f"engine/{index}" for index in range(4)
    }
    assert len({spec.scratch for spec in parts.values()}) == 8


def test_only_the_first_part_of_an_engine_says_where_to_meet(smoke, tmp_path):
    smoke.engine.nodes, smoke.engine.server_args["port"] = 2, 30000
    specs = by_name(place(smoke, tmp_path))
    first, second = specs["engine-0"], specs["engine-0.1"]
    assert first.command[-6:] == (
        *("--part", "0", "--generation", "{generation}", "--meet", "{meet}"),
    )
    assert second.command[-4:] == ("--part", "1", "--generation", "{generation}")
    assert (first.parts, second.parts) == (2, 2)
    assert (first.port, second.port) == (30000, None)
