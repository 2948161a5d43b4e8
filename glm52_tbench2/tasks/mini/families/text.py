"""Writing and changing the text of one file."""

from random import Random

from ..instance import Draft, family
from ..words import column, take


@family("create-file", "easy", "file-operations")
def create_file(rng: Random) -> Draft:
    name, word = take(rng, 2)
    return Draft(
        params=(name, word),
        instruction=rng.choice(
            [
                f"Create a file {name}.txt that contains the word {word}.",
                f"Write the word {word} to a new file called {name}.txt.",
                f"I need a file named {name}.txt with just {word} in it.",
            ]
        ),
        turns=[f"echo {word} > {name}.txt"],
        wrong=rng.choice([[f"touch {name}.txt"], [f"echo {name} > {word}.txt"]]),
        check=f'[ "$(cat {name}.txt)" = {word} ]',
    )


@family("append-line", "easy", "file-operations")
def append_line(rng: Random) -> Draft:
    name, word, *lines = take(rng, 2 + rng.randint(2, 4))
    return Draft(
        params=(name, word),
        instruction=rng.choice(
            [
                f"Add the line {word} to the end of {name}.txt. Keep the other lines.",
                f"Append {word} as a new last line to {name}.txt without losing what is there.",
                f"{name}.txt is missing its last line, which should be {word}. Please add it.",
            ]
        ),
        files={f"{name}.txt": column(lines)},
        turns=[f"echo {word} >> {name}.txt"],
        wrong=rng.choice([[f"echo {word} > {name}.txt"], [f"touch {name}.txt"]]),
        check=f"printf '%s\\n' {' '.join(lines)} {word} | cmp -s - {name}.txt",
    )


@family("replace-word", "easy", "file-operations")
def replace_word(rng: Random) -> Draft:
    name, old, new, *other = take(rng, 6)
    lines = [f"{old} {other[0]} {old}", f"{other[1]} {other[2]}", f"{other[2]} {old} {other[0]}"]
    rng.shuffle(lines)
    return Draft(
        params=(name, old, new),
        instruction=rng.choice(
            [
                f"In {name}.txt replace every {old} with {new}.",
                f"Change the word {old} to {new} everywhere in {name}.txt.",
                f"{name}.txt should say {new} wherever it now says {old}. Edit it in place.",
            ]
        ),
        files={f"{name}.txt": column(lines)},
        turns=[f"sed -i 's/{old}/{new}/g' {name}.txt"],
        wrong=rng.choice(
            [[f"sed -i 's/{old}/{new}/' {name}.txt"], [f"sed 's/{old}/{new}/g' {name}.txt"]]
        ),
        check=f"printf '%s\\n' {' '.join(repr(line) for line in lines)} "
        f"| sed 's/{old}/{new}/g' | cmp -s - {name}.txt",
    )
