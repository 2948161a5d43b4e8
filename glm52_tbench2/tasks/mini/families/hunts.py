"""Tasks whose answer is only visible in what an earlier command prints."""

from random import Random

from ..instance import Draft, family
from ..shell import says
from ..words import column, take


@family("follow-notes", "hard", "file-operations")
def follow_notes(rng: Random) -> Draft:
    start, second, third, code, out, *other = take(rng, 7)
    return Draft(
        params=(start, second, third, code, out),
        instruction=rng.choice(
            [
                f"{start}.txt names another file, which names the next. "
                f"Follow them to the code and write it to {out}.txt.",
                f"Start at {start}.txt, go from note to note until you find the code, "
                f"and save the code in {out}.txt.",
            ]
        ),
        files={
            f"{start}.txt": f"see {second}.txt\n",
            f"{second}.txt": f"see {third}.txt\n",
            f"{third}.txt": f"code {code}\n",
            f"{other[0]}.txt": f"code {other[1]}\n",
        },
        turns=[
            f"cat {start}.txt",
            f"cat {second}.txt",
            f"cat {third}.txt",
            f"echo {code} > {out}.txt",
        ],
        wrong=rng.choice(
            [
                [f"cat {start}.txt", f"echo {second} > {out}.txt"],
                [f"cat {start}.txt", f"cat {second}.txt", f"echo {third} > {out}.txt"],
                [f"cat {start}.txt", f"cp {second}.txt {out}.txt"],
            ]
        ),
        check=says(f"{out}.txt", code),
    )


@family("run-fix", "hard", "debugging")
def run_fix(rng: Random) -> Draft:
    script, out, missing, word, other = take(rng, 5)
    kind, test, fix = rng.choice(
        [
            ("folder", f"-d {missing}", f"mkdir {missing}"),
            ("file", f"-f {missing}", f"touch {missing}"),
        ]
    )
    return Draft(
        params=(script, out, kind, missing),
        instruction=rng.choice(
            [
                f"{script}.sh should write {out}.txt but it fails. Fix the cause and run it again.",
                f"Running {script}.sh stops with an error. Repair that so that it makes {out}.txt.",
            ]
        ),
        files={
            f"{script}.sh": f"if [ ! {test} ]; then\n  echo missing {kind} {missing}\n"
            "  exit 1\nfi\n"
            f"echo {word} > {out}.txt\necho done\n"
        },
        turns=[f"bash {script}.sh", fix, f"bash {script}.sh"],
        wrong=rng.choice(
            [
                [f"bash {script}.sh", f"touch {out}.txt"],
                [f"bash {script}.sh", fix],
                [f"bash {script}.sh", f"mkdir {other}", f"bash {script}.sh"],
            ]
        ),
        check=f"[ {test} ]\n" + says(f"{out}.txt", word),
    )


@family("config-folder", "hard", "system-administration")
def config_folder(rng: Random) -> Draft:
    config, new, folder, name, *other = take(rng, 7)
    lines = [f"folder={folder}", f"mode={other[0]}", f"host={other[1]}"]
    rng.shuffle(lines)
    return Draft(
        params=(config, new, folder, name),
        instruction=rng.choice(
            [
                f"{config}.conf sets a folder. Rename the only file in that folder to {new}.txt.",
                f"There is one file in the folder that {config}.conf names. Call it {new}.txt.",
            ]
        ),
        files={
            f"{config}.conf": column(lines),
            f"{folder}/{name}.txt": f"{other[2]}\n",
            f"{other[0]}/{other[1]}.txt": f"{other[1]}\n",
        },
        turns=[f"cat {config}.conf", f"ls {folder}", f"mv {folder}/{name}.txt {folder}/{new}.txt"],
        wrong=rng.choice(
            [
                [f"mv {config}.conf {new}.txt"],
                [
                    f"ls {other[0]}",
                    f"mv {other[0]}/{other[1]}.txt {other[0]}/{new}.txt",
                ],
                [f"cat {config}.conf", f"mv {folder} {new}"],
            ]
        ),
        check=f"[ ! -e {folder}/{name}.txt ]\n[ -d {other[0]} ]\n"
        + says(f"{folder}/{new}.txt", other[2]),
    )


@family("log-mode", "hard", "debugging")
def log_mode(rng: Random) -> Draft:
    log, out, name, *other = take(rng, 6)
    lines = [f"start {other[0]}", f"load {other[1]}", f"cannot read {name}.conf"]
    return Draft(
        params=(log, out, name),
        instruction=rng.choice(
            [
                f"{log}.log ends with a file that could not be read. "
                f"Set its mode to 644 and write its name to {out}.txt.",
                f"See at the end of {log}.log which file is unreadable, give it mode 644 "
                f"and note the file name in {out}.txt.",
            ]
        ),
        files={f"{log}.log": column(lines)}
        | {f"{file}.conf": f"mode={other[2]}\n" for file in (name, other[0], other[1])},
        dockerfile=["RUN chmod 600 *.conf && chmod 0 " + f"{name}.conf"],
        turns=[f"tail -n 1 {log}.log", f"chmod 644 {name}.conf", f"echo {name}.conf > {out}.txt"],
        wrong=rng.choice(
            [
                [f"tail -n 1 {log}.log", f"chmod 644 {name}.conf"],
                [f"chmod 644 {log}.log", f"echo {log}.log > {out}.txt"],
                [f"tail -n 1 {log}.log", f"tail -n 1 {log}.log > {out}.txt"],
            ]
        ),
        check=f'[ "$(stat -c %a {name}.conf)" = 644 ]\n'
        f'[ "$(stat -c %a {other[0]}.conf)" = 600 ]\n' + says(f"{out}.txt", f"{name}.conf"),
    )


@family("stop-job", "hard", "system-administration")
def stop_job(rng: Random) -> Draft:
    folder, job = take(rng, 2)
    return Draft(
        params=(folder, job),
        instruction=rng.choice(
            [
                f"A background job left its pid file in {folder}. Stop the job "
                "and remove the pid file.",
                f"Kill the job whose process id is in a file in the folder {folder}, "
                "then delete that file.",
            ]
        ),
        files={f"{job}.sh": "while true; do\n  sleep 1\ndone\n"},
        dockerfile=[
            f"RUN mkdir {folder}",
            f"RUN sh {job}.sh > /dev/null 2>&1 & echo $! > {folder}/{job}.pid",
        ],
        turns=[f"ls {folder}", f"kill $(cat {folder}/{job}.pid)", f"rm {folder}/{job}.pid"],
        wrong=rng.choice(
            [
                [f"ls {folder}", f"rm {folder}/{job}.pid"],
                [f"ls {folder}", f"kill $(cat {folder}/{job}.pid)"],
                [f"kill {folder}", f"rm {folder}/{folder}.pid"],
            ]
        ),
        # The brackets keep grep from finding its own command line.
        check=f"[ ! -e {folder}/{job}.pid ]\n[ -d {folder} ]\n"
        f"if grep -qsa '{job}[.]sh' /proc/[0-9]*/cmdline; then exit 1; fi",
    )
