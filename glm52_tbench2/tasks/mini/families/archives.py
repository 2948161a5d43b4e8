"""Packing and unpacking."""

from random import Random

from ..instance import Draft, family
from ..shell import says
from ..words import column, take


@family("pack-folder", "easy", "file-operations")
def pack_folder(rng: Random) -> Draft:
    folder, archive, *names = take(rng, 4)
    return Draft(
        params=(folder, archive),
        instruction=rng.choice(
            [
                f"Pack the folder {folder} into a compressed archive {archive}.tar.gz.",
                f"Create {archive}.tar.gz from the folder {folder}.",
                f"Back up the folder {folder} as {archive}.tar.gz.",
            ]
        ),
        files={f"{folder}/{name}.txt": f"{name}\n" for name in names},
        turns=[f"tar -czf {archive}.tar.gz {folder}"],
        wrong=rng.choice(
            [
                [f"tar -cf {archive}.tar.gz {folder}"],
                [f"gzip -r {folder}"],
                [f"tar -czf {folder}.tar.gz {archive}"],
            ]
        ),
        check="\n".join(
            [f"gzip -t {archive}.tar.gz", "mkdir -p /tmp/unpacked"]
            + [f"tar -xzf {archive}.tar.gz -C /tmp/unpacked"]
            + [says(f"/tmp/unpacked/{folder}/{name}.txt", name) for name in names]
        ),
    )


@family("unpack-rename", "medium", "file-operations")
def unpack_rename(rng: Random) -> Draft:
    archive, inner, new, word = take(rng, 4)
    return Draft(
        params=(archive, inner, new),
        instruction=rng.choice(
            [
                f"Unpack {archive}.tar.gz and rename the file that was inside to {new}.txt.",
                f"There is one file in {archive}.tar.gz. Extract it and call it {new}.txt.",
            ]
        ),
        files={f"{inner}.txt": f"{word}\n"},
        dockerfile=[f"RUN tar -czf {archive}.tar.gz {inner}.txt && rm {inner}.txt"],
        turns=[f"tar -xzvf {archive}.tar.gz", f"mv {inner}.txt {new}.txt"],
        wrong=rng.choice(
            [
                [f"mv {archive}.tar.gz {new}.txt"],
                [f"tar -xzvf {archive}.tar.gz", f"mv {archive}.txt {new}.txt"],
                [f"tar -tzf {archive}.tar.gz", f"mv {inner}.txt {new}.txt"],
            ]
        ),
        check=f"[ ! -e {inner}.txt ]\n" + says(f"{new}.txt", word),
    )


@family("find-pack", "hard", "system-administration")
def find_pack(rng: Random) -> Draft:
    name, archive, folder, *other = take(rng, 6)
    return Draft(
        params=(name, archive, folder),
        instruction=rng.choice(
            [
                f"Find the folder that holds {name}.txt, pack it as {archive}.tar.gz "
                "and then remove the folder.",
                f"Archive the folder with {name}.txt in it to {archive}.tar.gz "
                "and delete that folder afterwards.",
            ]
        ),
        files={
            f"{folder}/{name}.txt": column(other[:2]),
            f"{other[0]}/{other[1]}.txt": f"{name}\n",
            f"{other[2]}/{other[0]}.txt": f"{archive}\n",
        },
        turns=[
            f"find . -name {name}.txt",
            f"tar -czf {archive}.tar.gz {folder}",
            f"rm -r {folder}",
        ],
        wrong=rng.choice(
            [
                [f"tar -czf {archive}.tar.gz {name}.txt", f"rm {name}.txt"],
                [f"find . -name {name}.txt", f"tar -czf {archive}.tar.gz {folder}"],
                ["ls", f"tar -czf {archive}.tar.gz {other[0]}", f"rm -r {other[0]}"],
            ]
        ),
        check=f"[ ! -e {folder} ]\n[ -d {other[0]} ]\n[ -d {other[2]} ]\n"
        f"tar -tzf {archive}.tar.gz | grep -q '{folder}/{name}.txt$'",
    )
