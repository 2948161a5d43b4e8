"""Faults on real runs at small scale: what benchmarks/chaos does at length, once each.

Its machinery is used here, so that what the benchmark checks is what is tested.
"""

import random
from pathlib import Path

from benchmarks.chaos import books
from benchmarks.chaos.job import ROLES, Job
from benchmarks.chaos.proxy import HARMLESS, Proxy
from benchmarks.chaos.scenarios import SMALL, ended, kill

OVERRIDES = [*SMALL, "rollout.prompts_per_step=2", "checkpoint.every=1"]


def failed(checks: list[books.Check]) -> list[str]:
    return [f"{check.name}: {check.wrong}" for check in checks if check.wrong]


def test_a_kill_of_every_role_costs_no_sample_and_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    with Job(tmp_path, [*OVERRIDES, "steps=5"]) as job:
        for step, victim in enumerate(("driver", "env", "engine", "trainer")):
            job.wait_until(lambda step=step: job.steps >= step, f"the batch of step {step}")
            kill(job, victim, told.append)
        assert failed(ended(job, job.ended(), told.append)) == []
        lost = books.lost(job.run_dir)
        page = (job.run_dir / "report.html").read_text()
    assert all("SIGKILL" in line for line in told[: len(ROLES)]), told
    assert lost["driver"] > 0
    assert "every role starts again" in page and "replaced/driver" in page


def test_spoiled_sandboxes_are_replaced_and_nothing_else(tmp_path: Path) -> None:
    short = ["sandbox.command_timeout_s=2", "sandbox.verifier_timeout_s=5"]
    with Job(tmp_path, [*OVERRIDES, *short, "steps=3"]) as job:
        with Proxy(job, random.Random(1), 0.4) as proxy:
            code = job.ended()
        assert failed(ended(job, code, lambda text: None)) == []
        lost = books.lost(job.run_dir)
    wanted = {kind: n for kind, n in proxy.struck.items() if kind not in HARMLESS}
    assert sum(wanted.values()) > 0
    assert lost["sandbox"] + lost["verifier"] == sum(wanted.values()), (lost, proxy.struck)
    assert lost["verifier"] == wanted.get("unmarked", 0) + wanted.get("nan", 0)
