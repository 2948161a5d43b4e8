"""Work in a git repository."""

from random import Random

from ..instance import Draft, family
from ..shell import git_repository, says
from ..words import take


@family("git-branch", "easy", "software-engineering")
def git_branch(rng: Random) -> Draft:
    branch, name = take(rng, 2)
    return Draft(
        params=(branch,),
        instruction=rng.choice(
            [
                f"Create a git branch named {branch} and switch to it.",
                f"Start a new branch {branch} in this repository and check it out.",
            ]
        ),
        files={f"{name}.txt": f"{branch}\n"},
        dockerfile=git_repository(),
        turns=[f"git checkout -b {branch}"],
        wrong=rng.choice([[f"git branch {branch}"], [f"git checkout {branch}"]]),
        check=f'[ "$(git symbolic-ref --short HEAD)" = {branch} ]',
    )


@family("git-commit", "medium", "software-engineering")
def git_commit(rng: Random) -> Draft:
    name, message, word, other = take(rng, 4)
    return Draft(
        params=(name, message),
        instruction=rng.choice(
            [
                f"Commit the new file {name}.txt with the message {message}.",
                f"{name}.txt is not in git yet. Add it and commit it with the message {message}.",
            ]
        ),
        files={f"{other}.txt": f"{word}\n"},
        dockerfile=[*git_repository(), f"RUN echo {word} > {name}.txt"],
        turns=[f"git add {name}.txt", f"git commit -qm {message}"],
        wrong=rng.choice(
            [
                [f"git commit -qm {message}"],
                [f"git add {name}.txt"],
                [f"git add {name}.txt", f"git commit -qm {name}"],
            ]
        ),
        check=f'[ "$(git log -1 --format=%s)" = {message} ]\n'
        f'[ "$(git show HEAD:{name}.txt)" = {word} ]\n[ -z "$(git status --short)" ]',
    )


@family("git-restore", "medium", "software-engineering")
def git_restore(rng: Random) -> Draft:
    folder, lost, *names = take(rng, 5)
    files = [lost, *names[:2]]
    rng.shuffle(files)
    return Draft(
        params=(folder, lost),
        instruction=rng.choice(
            [
                f"A file in {folder} was deleted by mistake. Restore it from git.",
                f"Git says that a tracked file in {folder} is gone. Bring it back.",
                f"Someone removed a file from {folder} without committing. Undo that.",
            ]
        ),
        files={f"{folder}/{name}.txt": f"{names[2]}\n" for name in files},
        dockerfile=[*git_repository(), f"RUN rm {folder}/{lost}.txt"],
        turns=["git status --short", f"git checkout {folder}/{lost}.txt"],
        wrong=rng.choice(
            [
                ["git status --short", f"touch {folder}/{lost}.txt"],
                [f"ls {folder}", f"git checkout {folder}/{names[0]}.txt"],
                [f"git add {folder}", f"git commit -qm {folder}"],
            ]
        ),
        check=says(f"{folder}/{lost}.txt", names[2]) + '\n[ -z "$(git status --short)" ]',
    )


@family("git-merge", "hard", "software-engineering")
def git_merge(rng: Random) -> Draft:
    name, branch, other, base, word = take(rng, 5)

    def make_branch(title: str, file: str) -> str:
        return (
            f"RUN git checkout -q -b {title} main && echo {word} > {file}.txt && "
            f"git add -A && git commit -qm {title} && git checkout -q main"
        )

    steps = [make_branch(branch, name), make_branch(other, word)]
    rng.shuffle(steps)
    return Draft(
        params=(name, branch),
        instruction=rng.choice(
            [
                f"Some branch of this repository has {name}.txt. Merge it into main, "
                "then delete the branch.",
                f"Find the git branch that adds {name}.txt, merge it and remove the branch.",
            ]
        ),
        files={f"{base}.txt": f"{base}\n"},
        dockerfile=[*git_repository(), *steps],
        turns=[
            f"git log --all --format=%D -- {name}.txt",
            f"git merge -q {branch}",
            f"git branch -d {branch}",
        ],
        wrong=rng.choice(
            [
                ["git branch", f"git merge -q {other}", f"git branch -d {other}"],
                [f"git log --all --format=%D -- {name}.txt", f"git merge -q {branch}"],
                [f"git merge -q {name}", f"git branch -d {name}"],
            ]
        ),
        check=f'[ "$(git show main:{name}.txt)" = {word} ]\n'
        f'[ "$(git symbolic-ref --short HEAD)" = main ]\n'
        f'[ "$(git branch --format="%(refname:short)" | sort | tr "\\n" " ")" = '
        f'"{" ".join(sorted(["main", other]))} " ]',
    )
