"""What a partition can give, from sinfo's words, against what a job asks for."""

import re
from dataclasses import replace

import pytest

from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.schema import RunConfig
from glm52_tbench2.launch.slurm.limits import (
    Partition,
    cluster_problems,
    read_partitions,
    request_problems,
)

SINFO = """\
gpu*|up|4-00:00:00|12|144|1900000|gpu:gb300:4(S:0-1)
gpu*|up|4-00:00:00|2|64+|512000+|gpu:a100:8,fast:1
debug|up|30:00|2|8|16000|(null)
old|down|infinite|4|8|16000|gpu:4
"""


@pytest.fixture
def config() -> RunConfig:
    return compose(["experiment=smoke", "cluster=slurm"])


def asking(config: RunConfig, nodes: int = 1, gpus_per_node: int = 0, **slurm: object) -> RunConfig:
    asked = replace(config.cluster.slurm, **slurm)  # type: ignore[arg-type]
    cluster = replace(config.cluster, nodes=nodes, gpus_per_node=gpus_per_node, slurm=asked)
    return replace(config, cluster=cluster)


def partition(name: str) -> Partition:
    return {one.name: one for one in read_partitions(SINFO)}[name]


def test_sinfos_words_are_read():
    gpu, debug, old = read_partitions(SINFO)
    assert gpu == Partition("gpu", True, True, 5760.0, ((12, 144, 1900000, 4), (2, 64, 512000, 8)))
    assert (debug.default, debug.limit_min, debug.kinds) == (False, 30.0, ((2, 8, 16000, 0),))
    assert (old.up, old.limit_min, old.nodes) == (False, float("inf"), 4)


@pytest.mark.parametrize("request_", [{}, {"nodes": 12, "gpus_per_node": 4}, {"time_min": 5760}])
def test_a_request_that_fits_has_no_problem(config, request_):
    assert request_problems(asking(config, **request_), partition("gpu")) == []


@pytest.mark.parametrize(
    ("name", "request_", "sentence"),
    [
        ("old", {}, "Partition old takes no jobs now"),
        ("debug", {"time_min": 31}, "time_min is 31, above the limit of partition debug; .* 30:"),
        ("debug", {"nodes": 3}, "cluster.nodes is 3, but partition debug has 2"),
        ("gpu", {"nodes": 13, "gpus_per_node": 4, "memory_gb": 600}, "Only 12 nodes .* 600 GiB"),
        ("debug", {"gpus_per_node": 1}, "Only 0 nodes of partition debug have 1 GPUs"),
        ("gpu", {"cpus_per_node": 200}, "Only 0 nodes .* 200 CPUs"),
    ],
)
def test_what_does_not_fit_names_the_knob(config, name, request_, sentence):
    (problem,) = request_problems(asking(config, **{"time_min": 30, **request_}), partition(name))
    assert re.search(sentence, problem)


def test_without_slurm_the_answer_names_the_smoke_experiment(config, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    (problem,) = cluster_problems(config)
    assert "sbatch is not found" in problem and "experiment=smoke" in problem


def test_an_unknown_partition_names_those_there_are(cluster, config):
    (problem,) = cluster_problems(asking(config, partition="mian"))
    assert problem == (
        "cluster.slurm.partition is 'mian', which is unknown; write one of: main, urgent."
    )


def test_more_nodes_than_there_are_is_known_before_anything_is_queued(cluster, config):
    (problem,) = cluster_problems(asking(config, nodes=5))
    assert "cluster.nodes is 5, but partition main has 4" in problem


def test_a_slurm_that_does_not_answer_is_told(config, monkeypatch, tmp_path):
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=x\nSlurmctldHost=nowhere(127.0.0.1)\nSlurmctldPort=1\nMessageTimeout=1\n"
    )
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    (problem,) = cluster_problems(config)
    assert "Slurm does not answer" in problem
