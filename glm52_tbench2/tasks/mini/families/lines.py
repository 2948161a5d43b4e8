"""Counting, sorting and taking out lines of a file."""

from random import Random

from ..instance import Draft, family
from ..shell import holds, says
from ..words import column, take


@family("count-matches", "easy", "data-processing")
def count_matches(rng: Random) -> Draft:
    log, out, word, *other = take(rng, 7)
    hits, misses = rng.randint(2, 5), rng.randint(2, 4)
    lines = [f"{rng.choice(other)} {word}" for _ in range(hits)]
    lines += [f"{rng.choice(other)} {rng.choice(other)}" for _ in range(misses)]
    rng.shuffle(lines)
    return Draft(
        params=(log, out, word),
        instruction=rng.choice(
            [
                f"How many lines of {log}.log contain {word}? Write the number to {out}.txt.",
                f"Count the lines with {word} in {log}.log and save the count in {out}.txt.",
            ]
        ),
        files={f"{log}.log": column(lines)},
        turns=[f"grep -c {word} {log}.log > {out}.txt"],
        wrong=rng.choice(
            [[f"wc -l < {log}.log > {out}.txt"], [f"grep {word} {log}.log > {out}.txt"]]
        ),
        check=says(f"{out}.txt", str(hits)),
    )


@family("sort-unique", "easy", "data-processing")
def sort_unique(rng: Random) -> Draft:
    name, out, *words = take(rng, 6)
    lines = [*words, *rng.sample(words, 2)]
    rng.shuffle(lines)
    return Draft(
        params=(name, out),
        instruction=rng.choice(
            [
                f"Sort the lines of {name}.txt, drop duplicates and save the result in {out}.txt.",
                f"Write the lines of {name}.txt to {out}.txt in order, each of them only once.",
                f"{out}.txt should list the different lines of {name}.txt, sorted.",
            ]
        ),
        files={f"{name}.txt": column(lines)},
        turns=[f"sort -u {name}.txt > {out}.txt"],
        wrong=rng.choice([[f"sort {name}.txt > {out}.txt"], [f"cp {name}.txt {out}.txt"]]),
        check=holds(f"{out}.txt", sorted(words)),
    )


@family("first-lines", "easy", "data-processing")
def first_lines(rng: Random) -> Draft:
    name, out, *lines = take(rng, 9)
    count = rng.randint(2, 5)
    end, command, other = rng.choice([("first", "head", "tail"), ("last", "tail", "head")])
    return Draft(
        params=(name, out, end, str(count)),
        instruction=rng.choice(
            [
                f"Save the {end} {count} lines of {name}.txt in {out}.txt.",
                f"Copy the {end} {count} lines of {name}.txt to a new file {out}.txt.",
                f"I only need the {end} {count} lines of {name}.txt. Put them in {out}.txt.",
            ]
        ),
        files={f"{name}.txt": column(lines)},
        turns=[f"{command} -n {count} {name}.txt > {out}.txt"],
        wrong=rng.choice(
            [
                [f"{other} -n {count} {name}.txt > {out}.txt"],
                [f"{command} -n {count} {name}.txt"],
            ]
        ),
        check=holds(f"{out}.txt", lines[:count] if end == "first" else lines[-count:]),
    )


@family("extract-line", "easy", "data-processing")
def extract_line(rng: Random) -> Draft:
    name, out, *lines = take(rng, 8)
    number = rng.randint(2, 5)
    return Draft(
        params=(name, out, str(number)),
        instruction=rng.choice(
            [
                f"Write line {number} of {name}.txt to {out}.txt.",
                f"Copy only line {number} of {name}.txt into {out}.txt.",
                f"What is on line {number} of {name}.txt? Save that line as {out}.txt.",
            ]
        ),
        files={f"{name}.txt": column(lines)},
        turns=[f"sed -n {number}p {name}.txt > {out}.txt"],
        wrong=rng.choice(
            [
                [f"head -n {number} {name}.txt > {out}.txt"],
                [f"grep {number} {name}.txt > {out}.txt"],
            ]
        ),
        check=says(f"{out}.txt", lines[number - 1]),
    )
