"""Writing and changing the text of one file."""

from random import Random

from ..instance import Draft, family
from ..shell import holds, says
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
        check=says(f"{name}.txt", word),
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
        check=holds(f"{name}.txt", [*lines, word]),
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
        check=holds(f"{name}.txt", [line.replace(old, new) for line in lines]),
    )


@family("delete-lines", "easy", "file-operations")
def delete_lines(rng: Random) -> Draft:
    name, word, *other = take(rng, 7)
    keep = [f"{other[0]} {other[1]}", other[2], f"{other[3]} {other[4]}"]
    lines = [*keep, f"{word} {other[1]}", f"{other[3]} {word}"]
    rng.shuffle(lines)
    return Draft(
        params=(name, word),
        instruction=rng.choice(
            [
                f"Remove every line that contains {word} from {name}.txt.",
                f"Delete the lines with {word} in {name}.txt and leave the rest as it is.",
                f"{name}.txt must not mention {word} any more. Drop those lines.",
            ]
        ),
        files={f"{name}.txt": column(lines)},
        turns=[f"sed -i '/{word}/d' {name}.txt"],
        wrong=rng.choice([[f"sed '/{word}/d' {name}.txt"], [f"sed -i 's/{word}//' {name}.txt"]]),
        check=holds(f"{name}.txt", [line for line in lines if line in keep]),
    )


@family("set-variable", "easy", "system-administration")
def set_variable(rng: Random) -> Draft:
    name, word, *values = take(rng, 5)
    keys = rng.sample(["MODE", "USER", "HOST", "LEVEL", "THEME"], 3)
    lines = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
    key = keys[rng.randrange(3)]
    return Draft(
        params=(name, key, word),
        instruction=rng.choice(
            [
                f"Set {key} to {word} in {name}.env.",
                f"The variable {key} in {name}.env should be {word}. Leave the others alone.",
                f"Edit {name}.env so that {key} has the value {word}.",
            ]
        ),
        files={f"{name}.env": column(lines)},
        turns=[f"sed -i 's/^{key}=.*/{key}={word}/' {name}.env"],
        wrong=rng.choice([[f"echo {key}={word} > {name}.env"], [f"export {key}={word}"]]),
        check=holds(
            f"{name}.env",
            [f"{key}={word}" if line.startswith(f"{key}=") else line for line in lines],
        ),
    )
