"""Finding, moving, renaming and deleting files; modes and links."""

from random import Random

from ..instance import Draft, family
from ..shell import says, unchanged
from ..words import column, take


@family("delete-by-name", "easy", "file-operations")
def delete_by_name(rng: Random) -> Draft:
    folder, inner, *names = take(rng, 6)
    ending = rng.choice(["log", "tmp", "bak", "old"])
    junk = [f"{folder}/{names[0]}.{ending}", f"{folder}/{inner}/{names[1]}.{ending}"]
    kept = [f"{folder}/{names[2]}.txt", f"{folder}/{inner}/{names[3]}.txt"]
    return Draft(
        params=(folder, ending),
        instruction=rng.choice(
            [
                f"Delete every .{ending} file under {folder}, also in its sub-folders.",
                f"Clean up the folder {folder}: remove all .{ending} files at any depth.",
                f"Remove the .{ending} files below {folder}. Nothing else may go.",
            ]
        ),
        files={path: f"{names[0]}\n" for path in junk + kept},
        turns=[f"find {folder} -name '*.{ending}' -delete"],
        wrong=rng.choice([[f"rm {folder}/*.{ending}"], [f"rm -r {folder}"]]),
        check="\n".join(
            [f"[ ! -e {path} ]" for path in junk] + [f"[ -f {path} ]" for path in kept]
        ),
    )


@family("find-move", "medium", "file-operations")
def find_move(rng: Random) -> Draft:
    name, target, home, *other = take(rng, 5)
    return Draft(
        params=(name, target, home),
        instruction=rng.choice(
            [
                f"Find {name}.txt in one of the folders here and move it to the folder {target}.",
                f"{name}.txt is in the wrong folder. Find it and move it to {target}.",
                f"Move {name}.txt, wherever it is, into {target}.",
            ]
        ),
        files={
            f"{home}/{name}.txt": f"{other[0]}\n",
            f"{home}/{other[1]}.txt": f"{other[1]}\n",
            f"{other[0]}/{other[1]}.txt": f"{name}\n",
            f"{target}/{other[0]}.txt": f"{target}\n",
        },
        turns=[f"find . -name {name}.txt", f"mv ./{home}/{name}.txt {target}"],
        wrong=rng.choice(
            [
                [f"mv {name}.txt {target}"],
                [f"find . -name {name}.txt", f"mv ./{other[0]}/{name}.txt {target}"],
                [f"find . -name {name}.txt", f"cp ./{home}/{name}.txt {target}"],
            ]
        ),
        check=f"[ ! -e {home}/{name}.txt ]\n" + says(f"{target}/{name}.txt", other[0]),
    )


@family("find-word", "medium", "file-operations")
def find_word(rng: Random) -> Draft:
    word, new, folder, *names = take(rng, 9)
    files = names[:3]
    hit = rng.choice(files)
    lines = {name: [names[3 + i], names[5 - i]] for i, name in enumerate(files)}
    lines[hit][1] = word
    return Draft(
        params=(word, new, folder, hit),
        instruction=rng.choice(
            [
                f"One file in {folder} contains the word {word}. Rename it to {new}.txt.",
                f"Find the file in {folder} that mentions {word} and call it {new}.txt instead.",
            ]
        ),
        files={f"{folder}/{name}.txt": column(lines[name]) for name in files},
        turns=[f"grep -rl {word} {folder}", f"mv {folder}/{hit}.txt {folder}/{new}.txt"],
        wrong=rng.choice(
            [
                [f"mv {folder}/{word}.txt {folder}/{new}.txt"],
                [
                    f"ls {folder}",
                    f"mv {folder}/{next(n for n in files if n != hit)}.txt {folder}/{new}.txt",
                ],
                [f"grep -rl {word} {folder}", f"mv {folder}/{hit}.txt {new}.txt"],
            ]
        ),
        check=f"[ ! -e {folder}/{hit}.txt ]\n"
        + unchanged(f"{folder}/{new}.txt", column(lines[hit])),
    )


@family("largest-file", "medium", "system-administration")
def largest_file(rng: Random) -> Draft:
    folder, *names = take(rng, 8)
    files = names[:3]
    sizes = rng.sample([2, 4, 6], 3)
    biggest = files[sizes.index(6)]
    smallest = files[sizes.index(2)]
    return Draft(
        params=(folder, biggest),
        instruction=rng.choice(
            [
                f"Delete the largest file in the folder {folder}.",
                f"The folder {folder} takes too much space. Remove its biggest file.",
                f"Free some space: remove the largest file in {folder} and nothing else.",
            ]
        ),
        files={
            f"{folder}/{name}.txt": column([names[3 + i % 4] for i in range(size)])
            for name, size in zip(files, sizes, strict=True)
        },
        turns=[f"ls -S {folder}", f"rm {folder}/{biggest}.txt"],
        wrong=rng.choice(
            [
                [f"rm -r {folder}"],
                [f"ls {folder}", f"rm {folder}/{smallest}.txt"],
                [f"ls -S {folder}", f"rm {biggest}.txt"],
            ]
        ),
        check="\n".join(
            f"[ {'! -e' if name == biggest else '-f'} {folder}/{name}.txt ]" for name in files
        ),
    )


@family("set-mode", "easy", "security")
def set_mode(rng: Random) -> Draft:
    name, word = take(rng, 2)
    modes = rng.sample(["400", "440", "444", "600", "640", "644", "700", "750", "755"], 3)
    mode, start, other = modes
    return Draft(
        params=(name, mode),
        instruction=rng.choice(
            [
                f"Set the permissions of {name}.txt to {mode}.",
                f"Change the mode of {name}.txt to {mode}.",
                f"{name}.txt has the wrong permissions. They should be {mode}.",
            ]
        ),
        files={f"{name}.txt": f"{word}\n"},
        dockerfile=[f"RUN chmod {start} {name}.txt"],
        turns=[f"chmod {mode} {name}.txt"],
        wrong=rng.choice([[f"chmod {other} {name}.txt"], [f"ls -l {name}.txt"]]),
        check=f'[ "$(stat -c %a {name}.txt)" = {mode} ]',
    )


@family("run-script", "medium", "software-engineering")
def run_script(rng: Random) -> Draft:
    name, out, word = take(rng, 3)
    return Draft(
        params=(name, out, word),
        instruction=rng.choice(
            [
                f"Make {name}.sh executable, run it and save its output in {out}.txt.",
                f"{name}.sh is not executable yet. Fix that and save what it prints in {out}.txt.",
            ]
        ),
        files={f"{name}.sh": f"#!/bin/sh\necho {word}\n"},
        dockerfile=[f"RUN chmod 644 {name}.sh"],
        turns=[f"chmod +x {name}.sh", f"./{name}.sh > {out}.txt"],
        wrong=rng.choice(
            [
                [f"bash {name}.sh > {out}.txt"],
                [f"./{name}.sh > {out}.txt"],
                [f"chmod +x {name}.sh", f"cat {name}.sh > {out}.txt"],
            ]
        ),
        check=f"[ -x {name}.sh ]\n" + says(f"{out}.txt", word),
    )


@family("make-link", "easy", "file-operations")
def make_link(rng: Random) -> Draft:
    link, target, word = take(rng, 3)
    return Draft(
        params=(link, target),
        instruction=rng.choice(
            [
                f"Make a symbolic link {link}.txt that points to {target}.txt.",
                f"Create a symlink to {target}.txt and name it {link}.txt.",
            ]
        ),
        files={f"{target}.txt": f"{word}\n"},
        turns=[f"ln -s {target}.txt {link}.txt"],
        wrong=rng.choice(
            [
                [f"ln {target}.txt {link}.txt"],
                [f"ln -s {link}.txt {target}.txt"],
                [f"cp {target}.txt {link}.txt"],
            ]
        ),
        check=f"[ -L {link}.txt ]\n[ ! -L {target}.txt ]\n[ {link}.txt -ef {target}.txt ]",
    )


@family("fix-link", "hard", "file-operations")
def fix_link(rng: Random) -> Draft:
    link, target, old, new, other = take(rng, 5)
    return Draft(
        params=(link, target, new),
        instruction=rng.choice(
            [
                f"The link {link}.txt is broken: its target was moved. Make it point there again.",
                f"{link}.txt is a broken symlink. Find where its file went and repair the link.",
            ]
        ),
        files={f"{new}/{target}.txt": f"{other}\n", f"{old}/{other}.txt": f"{old}\n"},
        dockerfile=[f"RUN ln -s {old}/{target}.txt {link}.txt"],
        turns=[
            f"readlink {link}.txt",
            f"find . -name {target}.txt",
            f"ln -sf ./{new}/{target}.txt {link}.txt",
        ],
        wrong=rng.choice(
            [
                [f"readlink {link}.txt", f"ln -sf {target}.txt {link}.txt"],
                [f"find . -name {link}.txt", f"ln -sf {old}/{other}.txt {link}.txt"],
                [f"rm {link}.txt", f"touch {link}.txt"],
            ]
        ),
        check=f"[ -L {link}.txt ]\n[ {link}.txt -ef {new}/{target}.txt ]\n"
        + says(f"{new}/{target}.txt", other),
    )
