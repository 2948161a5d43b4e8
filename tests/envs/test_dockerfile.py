"""What a Dockerfile without an image makes."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm52_tbench2.envs.dockerfile import instructions, read_recipe
from glm52_tbench2.envs.local import LocalSandbox
from glm52_tbench2.envs.sandbox import SandboxError
from glm52_tbench2.tasks.suite import Task

from .conftest import CONFIG


def test_every_step_shows_in_the_sandbox(make_task: Callable[..., Task]) -> None:
    task = make_task(
        dockerfile="""# a comment
FROM ubuntu:24.04
LABEL a=b
ENV GREETING="hello world" NAME=x
ENV LAST the rest of the line
ENV PATH=/opt/$NAME/bin:$PATH
WORKDIR /srv
WORKDIR data
COPY files/ ./
COPY --chmod=640 one.txt two.txt /etc-like/
COPY one.txt renamed.txt
COPY one.txt /srv/data
COPY ["with space.txt", "/srv/"]
COPY *.cfg /srv/cfg/
RUN echo $GREETING > greeting && \\
    # a comment between
    echo more >> greeting
RUN ["/bin/sh", "-c", "echo exec form > form"]
CMD ["ignored"]
workdir /srv/final
""",
        files={
            "files/a.txt": "a",
            "files/deep/b.txt": "b",
            "one.txt": "1",
            "two.txt": "2",
            "with space.txt": "s",
            "a.cfg": "",
            "b.cfg": "",
        },
    )
    (task.environment / "files" / "run.sh").write_text("echo ran")
    (task.environment / "files" / "run.sh").chmod(0o700)
    (task.environment / "files" / "link").symlink_to("a.txt")
    with closing(LocalSandbox(task, CONFIG)) as sandbox:
        find = "find . -printf '%P %M %y %l\\n' | sort"
        assert sandbox.exec(f"pwd; cd /srv; {find}", 60.0).output.splitlines() == [
            "/srv/final",
            " drwxr-xr-x d ",
            "cfg drwxr-xr-x d ",
            "cfg/a.cfg -rw-r--r-- f ",
            "cfg/b.cfg -rw-r--r-- f ",
            "data drwxr-xr-x d ",
            "data/a.txt -rw-r--r-- f ",
            "data/deep drwxr-xr-x d ",
            "data/deep/b.txt -rw-r--r-- f ",
            "data/form -rw-r--r-- f ",
            "data/greeting -rw-r--r-- f ",
            "data/link lrwxrwxrwx l a.txt",
            "data/one.txt -rw-r--r-- f ",
            "data/renamed.txt -rw-r--r-- f ",
            "data/run.sh -rwxr-xr-x f ",
            "final drwxr-xr-x d ",
            "with space.txt -rw-r--r-- f ",
        ]
        said = sandbox.exec(
            "cat data/greeting data/form; echo $GREETING, $LAST, $PATH; stat -c %a /etc-like/*",
            60.0,
        )
        assert said.output == (
            "hello world\nmore\nexec form\n"
            "hello world, the rest of the line, /opt/x/bin:/usr/local/sbin:/usr/local/bin:"
            "/usr/sbin:/usr/bin:/sbin:/bin\n640\n640\n"
        )


def test_two_sandboxes_of_a_task_look_the_same(make_task: Callable[..., Task]) -> None:
    dockerfile = "FROM x\nWORKDIR /app\nCOPY files/ /app/\nRUN mkdir new && date > new/when\n"
    task = make_task(dockerfile=dockerfile)
    looks = []
    for _ in range(2):
        with closing(LocalSandbox(task, CONFIG)) as sandbox:
            looks.append(sandbox.exec("ls -laR --time-style=full-iso /app; env; ps", 60.0).output)
    assert looks[0] == looks[1]
    assert "2025-01-01" in looks[0]


def test_a_date_that_a_step_sets_is_kept(make_task: Callable[..., Task]) -> None:
    task = make_task(dockerfile="FROM x\nWORKDIR /app\nRUN touch -d 2001-02-03 old; touch now\n")
    with closing(LocalSandbox(task, CONFIG)) as sandbox:
        assert "2001-02-03" in sandbox.exec("stat -c %y old", 60.0).output


def test_jobs_that_a_step_starts_go_on(make_task: Callable[..., Task]) -> None:
    task = make_task(
        dockerfile="FROM x\nWORKDIR /app\nRUN sleep 300 > /dev/null 2>&1 & echo $! > pid\n"
    )
    with closing(LocalSandbox(task, CONFIG)) as sandbox:
        assert sandbox.exec("kill $(cat pid) && echo ended", 60.0).output == "ended\n"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("ADD files /app", "knows no ADD"),
        ("USER nobody", "knows no USER"),
        ("COPY --from=build /a /b", "environment folder"),
        ("COPY ../secret /app/", "environment folder"),
        ("COPY missing.txt /app/", "no missing.txt"),
        ("COPY files", "COPY SOURCE TARGET"),
        ("ENV =x", "ENV NAME=value"),
        ("RUN [broken", "RUN"),
    ],
)
def test_what_it_cannot_do_is_told_with_its_line(
    make_task: Callable[..., Task], line: str, told: str
) -> None:
    task = make_task(dockerfile=f"FROM x\n\n{line}\n")
    with pytest.raises(SandboxError, match="line 3") as error:
        read_recipe(task.environment)
    assert told in str(error.value)


words = st.text("abcXYZ012 '\"=/.&|", min_size=1).map(str.strip).filter(bool)


@given(st.lists(st.tuples(st.sampled_from(["RUN", "run", "COPY", "Env"]), words), max_size=8))
def test_instructions_survive_comments_blank_lines_and_continuations(
    steps: list[tuple[str, str]],
) -> None:
    plain = "".join(f"{name} {rest}\n" for name, rest in steps)
    spread = "".join(f"# c\n\n  {name} \\\n# between\n{rest}\n\n" for name, rest in steps)
    expected = [(name.upper(), rest) for name, rest in steps]
    assert [found[1:] for found in instructions(plain)] == expected
    assert [found[1:] for found in instructions(spread)] == expected
    assert [found[0] for found in instructions(plain)] == list(range(1, len(steps) + 1))


def test_recipes_do_not_depend_on_a_checkouts_modes_and_dates(tmp_path: Path) -> None:
    payloads = []
    for name, mode in (("one", 0o600), ("two", 0o664)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "Dockerfile").write_text("FROM x\nCOPY a.txt /app/\n")
        (folder / "a.txt").write_text("a")
        (folder / "a.txt").chmod(mode)
        payloads.append(read_recipe(folder).payload)
    assert payloads[0] == payloads[1]
