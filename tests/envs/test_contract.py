"""What every provider's sandbox does. Add a provider in conftest.py to run it through these."""

import time

import pytest

from glm52_tbench2.envs.sandbox import SandboxError


def run(sandbox, command, timeout_s=60.0):
    return sandbox.exec(command, timeout_s)


@pytest.mark.parametrize(
    ("command", "output", "exit_code"),
    [
        pytest.param("echo out; echo err >&2", "out\nerr\n", 0, id="both outputs, in order"),
        pytest.param("printf 'no newline'", "no newline", 0, id="no newline"),
        pytest.param("true", "", 0, id="no output"),
        pytest.param("false", "", 1, id="exit code"),
        pytest.param("printf 'a\\0b\\377c'", "a\0b\ufffdc", 0, id="binary"),
        pytest.param("printf '\\360\\237\\246\\212'", "\N{FOX FACE}", 0, id="utf-8"),
        pytest.param('cat; read line; echo "[$line]"', "[]\n", 0, id="empty standard input"),
        pytest.param("a='x\ny'\necho \"$a\"", "x\ny\n", 0, id="several lines"),
        pytest.param("cat <<'EOF'\n$x `y` 'z'\nEOF", "$x `y` 'z'\n", 0, id="here-document"),
        pytest.param("exit 7", "", 7, id="exit"),
        pytest.param("exec printf gone", "gone", 0, id="exec"),
        pytest.param("kill -KILL $$", "", 137, id="kills its shell"),
        pytest.param("set -eu; echo $missing", None, 1, id="a shell that gives up"),
        pytest.param(
            "echo one; break; continue; return", None, None, id="loop words outside a loop"
        ),
        pytest.param("exec 1>&- 2>&-", "", 0, id="closes its outputs"),
    ],
)
def test_a_command_gives_its_output_and_exit_code(sandbox, command, output, exit_code):
    result = run(sandbox, command)
    assert not result.timed_out
    assert output in (None, result.output)
    assert exit_code in (None, result.exit_code)
    assert run(sandbox, "echo usable").output == "usable\n"


def test_an_unclosed_substitution_costs_no_later_command(sandbox):
    # bash 5.2 frees wrongly here: the shell would abort at the third command.
    run(sandbox, "echo $(")
    run(sandbox, "printf x; for i in $(seq 6000); do printf é; done")
    result = run(sandbox, "(sleep 0.1; echo late > /tmp/late) & echo early")
    assert (result.output, result.exit_code) == ("early\n", 0)


def test_functions_may_hide_builtins(sandbox):
    run(sandbox, "eval() { :; }; printf() { :; }; read() { :; }")
    assert run(sandbox, "echo usable").output == "usable\n"
    run(sandbox, "unset -f eval printf read")


@pytest.mark.parametrize(
    "command", ["echo 'a", 'echo "a', "echo $(", "cat <<EOF\na", "if", "(", "`"]
)
def test_an_unfinished_command_ends_and_disturbs_nothing(sandbox, command):
    assert not run(sandbox, command).timed_out
    assert run(sandbox, "echo next").output == "next\n"


def test_folder_variables_functions_and_jobs_persist(sandbox):
    run(sandbox, "mkdir -p /tmp/deep && cd /tmp/deep && x=1 && export y=2 && f() { echo f$1; }")
    run(sandbox, "sleep 77 &")
    result = run(sandbox, "pwd; echo $x; sh -c 'echo $y'; f 3; kill $! && echo killed")
    assert result.output == "/tmp/deep\n1\n2\nf3\nkilled\n"
    run(sandbox, "cd /app")


@pytest.mark.parametrize(
    "forgery",
    [
        "for i in $(seq 3 60); do printf '%032x 0 1 /\\0' 0 >&$i; done",
        "for f in /proc/$$/fd/*; do printf '%032x 0 1 /\\0' 0 > $f & done; wait",
        "printf '%032x 0 1 /\\0' 0",
    ],
)
def test_the_end_of_a_command_cannot_be_forged(sandbox, forgery):
    result = run(sandbox, f"({forgery}) 2>/dev/null; (sleep 0.3; echo real; exit 5)")
    assert result.exit_code == 5
    assert result.output.endswith("real\n")


def test_output_is_cut_and_the_command_still_runs_to_its_end(sandbox):
    result = run(sandbox, "head -c 3000000 /dev/zero | tr '\\0' x; echo done > /tmp/written")
    assert result.output == "x" * 10_000
    assert result.exit_code == 0
    assert run(sandbox, "cat /tmp/written").output == "done\n"


def test_a_cut_through_a_character_leaves_no_half(sandbox):
    output = run(sandbox, "printf x; for i in $(seq 6000); do printf é; done").output
    assert output == "x" + "é" * 4999


def test_a_background_job_does_not_hold_its_command(sandbox):
    began = time.monotonic()
    result = run(sandbox, "(sleep 30; echo late) & echo early")
    assert result.output == "early\n"
    assert time.monotonic() - began < 15
    run(sandbox, "kill $!")


def test_a_long_command_arrives_whole(sandbox):
    assert run(sandbox, f": {'x' * 100_000}; echo end").output == "end\n"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("sleep 300", id="waits"),
        pytest.param("while :; do :; done", id="loops"),
        pytest.param("yes", id="floods"),
        pytest.param("kill -STOP $$", id="stops its shell"),
        pytest.param("trap '' TERM INT HUP; sleep 300; sleep 300", id="ignores signals"),
        pytest.param("exec sleep 300", id="replaces its shell"),
    ],
)
def test_a_command_past_its_time_is_killed_and_the_folder_kept(sandbox, command):
    run(sandbox, "mkdir -p /tmp/here")
    result = run(sandbox, f"cd /tmp/here; echo begun; {command}", 0.5)
    assert result.timed_out
    assert result.exit_code is None
    assert result.output.startswith("begun\n")
    assert run(sandbox, "pwd").output == "/tmp/here\n"
    run(sandbox, "cd /app")


def test_the_whole_tree_of_a_command_past_its_time_is_killed(sandbox):
    run(
        sandbox,
        "sleep 991 & (sleep 992 &) ; setsid sleep 993 & (setsid sh -c 'sleep 994 & sleep 995' &)\n"
        "sh -c 'trap \"\" TERM; while :; do sleep 996; done'",
        1.0,
    )
    assert run(sandbox, "pgrep -f 'sleep 99[1-6]'").output == ""


def test_jobs_of_earlier_commands_survive_one_past_its_time(sandbox):
    # A child that the job starts meanwhile is killed too, which its shell tells on stderr.
    run(sandbox, "(while :; do echo tick; sleep 0.1; done) > /tmp/ticks 2> /dev/null & sleep 88 &")
    run(sandbox, "sleep 300", 0.3)
    assert run(sandbox, "pgrep -fc '^sleep 88'").output == "1\n"
    ticks = "wc -l < /tmp/ticks"
    later = run(sandbox, f"before=$({ticks}); sleep 1; [ $({ticks}) -gt $before ] && echo alive")
    assert later.output == "alive\n"
    run(sandbox, "pkill -f 'sleep 88|tick'")


def test_a_job_may_write_to_the_terminal_after_its_shell_is_gone(start):
    sandbox = start()
    run(
        sandbox,
        "(trap 'echo broken > /tmp/broken' PIPE; sleep 1; echo late; echo fine > /tmp/fine) &",
    )
    run(sandbox, "exit")
    assert run(sandbox, "sleep 2; cat /tmp/broken /tmp/fine 2>/dev/null").output == "late\nfine\n"


# Verdicts


@pytest.mark.parametrize(
    ("test", "reward"),
    [
        ("echo 1 > /logs/verifier/reward.txt; exit 3", 1.0),
        ("printf 0 > /logs/verifier/reward.txt", 0.0),
        ("exit 0", None),
        ("echo > /logs/verifier/reward.txt", None),
        ("echo 0.5 > /logs/verifier/reward.txt", None),
        ("echo passed > /logs/verifier/reward.txt", None),
        ("yes 1 > /logs/verifier/reward.txt", None),
        ("mkdir /logs/verifier/reward.txt", None),
        ("kill -KILL $$", None),
    ],
)
def test_only_1_or_0_in_the_reward_file_is_a_verdict(start, test, reward):
    verdict = start(test=test, verifier_s=3.0).verify()
    assert verdict.reward == reward
    assert (verdict.error is None) == (reward is not None)


def test_the_verdict_follows_what_the_commands_did(start):
    sandbox = start()
    assert sandbox.verify().reward == 0.0
    run(sandbox, "touch done")
    assert sandbox.verify().reward == 1.0
    run(sandbox, "rm done")
    assert sandbox.verify().reward == 0.0


def test_tests_past_their_time_give_no_verdict(start):
    sandbox = start(
        test="echo 1 > /logs/verifier/reward.txt; sleep 300 & sleep 300", verifier_s=1.0
    )
    verdict = sandbox.verify()
    assert verdict.reward is None
    assert "1 s" in verdict.error
    assert run(sandbox, "pgrep -fx 'sleep 300'").output == ""


def test_the_config_overrides_the_tasks_time_for_tests(start):
    sandbox = start(config={"verifier_timeout_s": 0.5}, test="sleep 300", verifier_s=100.0)
    assert "0.5 s" in sandbox.verify().error


def test_tests_run_in_the_working_folder_and_their_words_are_kept(start):
    sandbox = start(
        test="pwd; cat < /dev/stdin; ls /tests; echo 1 > /logs/verifier/reward.txt",
        dockerfile="FROM buildpack-deps:bookworm-scm\nWORKDIR /workspace/deep\n",
    )
    run(sandbox, "cd /tmp")
    assert sandbox.verify().output == "/workspace/deep\ntest.sh\n"


def test_tests_see_the_jobs_and_ports_of_the_commands(start):
    sandbox = start(
        test='kill -0 $(cat /app/pid) && [ "$(cat < /dev/tcp/127.0.0.1/8000)" = hello ] &&'
        " echo 1 > /logs/verifier/reward.txt"
    )
    run(
        sandbox,
        "perl -MIO::Socket -e '$s = IO::Socket::INET->new(LocalPort => 8000, Listen => 5, "
        'ReuseAddr => 1) or die; while ($c = $s->accept) { print $c "hello\\n"; close $c }\' &\n'
        "echo $! > pid; until (: < /dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.05; done",
    )
    assert sandbox.verify().reward == 1.0


def test_tests_and_their_log_are_seen_only_by_themselves(start):
    sandbox = start(test="cat /tests/test.sh > /dev/null && echo 1 > /logs/verifier/reward.txt")
    look = "find /tests /logs -type f; find / -xdev -name test.sh 2>/dev/null"
    before = run(sandbox, look).output
    assert sandbox.verify().reward == 1.0
    assert (before, run(sandbox, look).output) == ("", "")


# The end


def test_a_closed_sandbox_says_so(start):
    sandbox = start()
    sandbox.close()
    sandbox.close()
    with pytest.raises(SandboxError):
        run(sandbox, "true")
    with pytest.raises(SandboxError):
        sandbox.verify()


def test_a_failing_environment_is_told_with_its_step_and_its_words(start):
    with pytest.raises(SandboxError, match=r"RUN echo nonsense; false") as error:
        start(
            dockerfile="FROM buildpack-deps:bookworm-scm\nWORKDIR /app\nRUN echo nonsense; false\n"
        )
    assert "nonsense\n" in str(error.value)
