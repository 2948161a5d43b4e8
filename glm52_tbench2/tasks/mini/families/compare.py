"""Checksums and differences."""

import hashlib
from random import Random

from ..instance import Draft, family
from ..shell import says
from ..words import column, take


@family("bad-checksum", "medium", "security")
def bad_checksum(rng: Random) -> Draft:
    sums, *names = take(rng, 8)
    files = sorted(names[:3])
    bad = rng.choice(files)
    good = [name for name in files if name != bad]
    texts = {name: f"{word}\n" for name, word in zip(files, names[3:6], strict=True)}
    lines = [f"{hashlib.md5(texts[name].encode()).hexdigest()}  {name}.txt" for name in files]
    texts[bad] = f"{names[6]}\n"
    return Draft(
        params=(sums, bad),
        instruction=rng.choice(
            [
                f"One of the files listed in {sums}.md5 is damaged. Delete that file.",
                f"Check the files against {sums}.md5 and remove the one that does not match.",
            ]
        ),
        files={f"{sums}.md5": column(lines)} | {f"{n}.txt": text for n, text in texts.items()},
        turns=[f"md5sum --quiet -c {sums}.md5", f"rm {bad}.txt"],
        wrong=rng.choice(
            [
                [f"rm {sums}.md5"],
                ["ls", f"rm {good[0]}.txt"],
                [f"md5sum --quiet -c {sums}.md5", f"rm {good[1]}.txt"],
            ]
        ),
        check=f"[ ! -e {bad}.txt ]\n" + "\n".join(f"[ -f {name}.txt ]" for name in good),
    )


@family("folder-diff", "medium", "file-operations")
def folder_diff(rng: Random) -> Draft:
    source, copy, *names = take(rng, 9)
    files = names[:3]
    stale = rng.choice(files)
    other = next(name for name in files if name != stale)
    texts = dict(zip(files, names[3:6], strict=True))
    return Draft(
        params=(source, copy, stale),
        instruction=rng.choice(
            [
                f"One file in {copy} differs from the one in {source}. Copy it over from {source}.",
                f"{copy} should equal {source} but one file is out of date. Update it in {copy}.",
            ]
        ),
        files={f"{source}/{name}.txt": f"{text}\n" for name, text in texts.items()}
        | {f"{copy}/{name}.txt": f"{text}\n" for name, text in texts.items()}
        | {f"{copy}/{stale}.txt": f"{names[6]}\n"},
        turns=[f"diff -rq {source} {copy}", f"cp {source}/{stale}.txt {copy}/{stale}.txt"],
        wrong=rng.choice(
            [
                [f"cp -r {source} {copy}"],
                [f"diff -rq {source} {copy}", f"cp {copy}/{stale}.txt {source}/{stale}.txt"],
                [f"ls {copy}", f"cp {source}/{other}.txt {copy}/{other}.txt"],
            ]
        ),
        check=f"diff -r {source} {copy}\n" + says(f"{copy}/{stale}.txt", texts[stale]),
    )
