"""Faults on real runs at small scale: what benchmarks/chaos does at length, once each.

Its machinery is used here, so that what the benchmark checks is what is tested.
"""

import random
from pathlib import Path

from benchmarks.chaos import books
from benchmarks.chaos.job import Job
from benchmarks.chaos.proxy import HARMLESS, Proxy
from benchmarks.chaos.scenarios import SMALL, ended, kill
from glm52_tbench2.analysis.run_files import RunFiles

OVERRIDES = [*SMALL, "rollout.prompts_per_step=2", "checkpoint.every=1"]


def failed(checks: list[books.Check]) -> list[str]:
    return [f"{check.name}: {check.wrong}" for check in checks if check.wrong]


def test_a_kill_of_every_role_costs_no_sample_and_is_told(tmp_path: Path) -> None:
    with Job(tmp_path, [*OVERRIDES, "steps=5"]) as job:
        job.wait_until_ready()
        for step, victim in enumerate(("driver", "env", "engine", "trainer")):
            job.wait_until(lambda step=step: job.steps >= step, f"the batch of step {step}")
            kill(job, victim, lambda text: None)
        assert failed(ended(job, job.ended(), lambda text: None)) == []
        killed = [event.split()[2] for event in job.events if "SIGKILL" in event]
    assert killed == ["driver", "env", "engine-0", "trainer-0"]


def test_spoiled_sandboxes_are_replaced_and_nothing_else(tmp_path: Path) -> None:
    short = ["sandbox.command_timeout_s=2", "sandbox.verifier_timeout_s=5"]
    with Job(tmp_path, [*OVERRIDES, *short, "steps=3"]) as job:
        with Proxy(job, random.Random(1), 0.4) as proxy:
            code = job.ended()
        assert failed(ended(job, code, lambda text: None)) == []
        lost = books.lost(RunFiles.open(job.run_dir))
    wanted = {kind: n for kind, n in proxy.struck.items() if kind not in HARMLESS}
    assert sum(wanted.values()) > 0
    assert lost["sandbox"] + lost["verifier"] == sum(wanted.values()), (lost, proxy.struck)
    assert lost["verifier"] == wanted.get("unmarked", 0) + wanted.get("nan", 0)
