"""What the policy may try on its verdict, with jobs that live on while the tests run."""

import time
from collections.abc import Callable

import pytest

from glm52_tbench2.envs.local import LocalSandbox
from glm52_tbench2.tasks.suite import Task

from .conftest import CONFIG

# Slow enough to be attacked at every stage.
SLOW = """
sleep 0.7
echo answer-in-a-file > /tests/answer
sh -c 'sleep 0.7' answer-in-an-argument
[ -f /app/done ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
sleep 0.7
"""
ATTACKS = {
    "planted reward": "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt",
    "looped reward": """
        (while :; do
            for root in '' /proc/[0-9]*/root /proc/[0-9]*/cwd/..; do
                echo 1 > $root/logs/verifier/reward.txt
            done
            sleep 0.01
        done) > /dev/null 2>&1 &""",
    "links in place of folders": """
        rm -rf /logs /tests /app /tmp; mkdir -p /evil/verifier; echo 1 > /evil/verifier/reward.txt
        ln -s /evil /logs; ln -s /evil /tests; ln -s /evil /app; ln -s /evil /tmp""",
    "written to every pipe": """
        (while :; do for f in /proc/[0-9]*/fd/*; do echo 1 > $f & done; wait; sleep 0.01; done) \
            > /dev/null 2>&1 &
        sleep 0.2""",
    "programs of its own": """
        mkdir -p /app/bin; cd /app/bin
        for name in mount tar mkdir head bash sh env setpriv unshare cat; do
            printf '#!/usr/bin/bash\\necho 1 > /logs/verifier/reward.txt; echo 1\\n' > $name
            chmod +x $name
        done
        cp bash ~/.bashrc; cp bash ~/.profile""",
    "libraries of its own": """
        mkdir -p /app/lib; for name in libcap-ng.so.0 libmount.so.1 libselinux.so.1; do
            echo junk > /app/lib/$name
        done
        exit""",
    "kills everything": "(sleep 0.3; while :; do kill -9 -1; done) > /dev/null 2>&1 &",
    "kills everything at once": "(while :; do kill -9 -1; done) > /dev/null 2>&1 & sleep 1",
    "fills the disk": "head -c 1G /dev/zero > /full; head -c 1G /dev/zero > /dev/shm/full",
    "uses every process": "for i in $(seq 100); do sleep 300 & done 2>/dev/null",
    "deletes everything": "rm -rf /[!pu]*",
    "traces everything": """
        cat > /tmp/trace.pl <<'EOF'
            select undef, undef, undef, 0.5;  # so that only the tests are still to come
            while (1) {
                for my $pid ($$ + 1 .. $$ + 300) {
                    next if syscall(101, 16, $pid, 0, 0);  # PTRACE_ATTACH
                    open my $log, '>>', '/app/done'; close $log;
                }
            }
EOF
        perl /tmp/trace.pl > /dev/null 2>&1 &""",
}


@pytest.fixture
def attacked(make_task: Callable[..., Task]):
    # Where programs and libraries are looked for is the task's to say, and here unwise.
    variables = "ENV PATH=/app/bin:$PATH LD_LIBRARY_PATH=/app/lib"
    task = make_task(test=SLOW, dockerfile=f"FROM x\n{variables}\nWORKDIR /app\n")
    sandbox = LocalSandbox(task, CONFIG)
    yield sandbox
    sandbox.close()


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_a_task_not_done_scores_0_whatever_is_tried(attacked: LocalSandbox, attack: str) -> None:
    attacked.exec(attack, 2.0)
    verdict = attacked.verify()
    assert (verdict.reward, verdict.error) == (0.0, None)


def test_a_task_done_scores_1_under_attack(attacked: LocalSandbox) -> None:
    attacked.exec("touch /app/done", 60.0)
    attacked.exec(ATTACKS["looped reward"].replace("echo 1", "echo 0"), 60.0)
    attacked.exec(
        ATTACKS["links in place of folders"].replace("/app /tmp", "").split("ln -s /evil /app")[0],
        5.0,
    )
    assert attacked.verify().reward == 1.0


def test_jobs_learn_nothing_of_the_tests_while_they_run(attacked: LocalSandbox) -> None:
    attacked.exec(
        """(while :; do
            grep -ohas 'answer-in-an-[a]rgument' /proc/[0-9]*/cmdline
            grep -ohas 'answer-in-a-[f]ile' /tests/* /proc/[0-9]*/root/tests/* /proc/[0-9]*/cwd/*
            echo >> /app/seen
            sleep 0.02
        done) > /app/stolen &""",
        5.0,
    )
    assert attacked.verify().reward == 0.0
    assert attacked.exec("cat /app/stolen", 60.0).output == ""
    assert int(attacked.exec("wc -l < /app/seen", 60.0).output) > 5  # it did look


def test_what_tests_leave_running_is_ended(make_task: Callable[..., Task]) -> None:
    task = make_task(
        test="echo 0 > /logs/verifier/reward.txt\n"
        "(setsid sh -c 'cat /tests/test.sh > /app/leak; sleep 300' &) ; (sleep 301 &)"
    )
    sandbox = LocalSandbox(task, CONFIG)
    try:
        began = time.monotonic()
        assert sandbox.verify().reward == 0.0
        assert time.monotonic() - began < 60
        assert sandbox.exec("pgrep sleep", 60.0).output == ""
    finally:
        sandbox.close()


def test_tests_may_read_what_the_policy_has_locked(make_task: Callable[..., Task]) -> None:
    # As root of a container may.
    task = make_task(test="cat /app/a.txt && echo 1 > /logs/verifier/reward.txt")
    sandbox = LocalSandbox(task, CONFIG)
    try:
        assert sandbox.exec("chmod 0 a.txt; cat a.txt", 60.0).exit_code == 1
        assert sandbox.verify().reward == 1.0
    finally:
        sandbox.close()
