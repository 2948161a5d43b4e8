"""CSV and JSON files."""

from random import Random

from ..instance import Draft, family
from ..shell import holds, says
from ..words import column, take


@family("csv-column", "medium", "data-processing")
def csv_column(rng: Random) -> Draft:
    name, out, *cells = take(rng, 11)
    header = rng.sample(["name", "city", "color", "team", "animal"], 3)
    rows = [header] + [cells[i * 3 : i * 3 + 3] for i in range(3)]
    index = rng.randrange(3)
    wanted = header[index]
    return Draft(
        params=(name, out, wanted, str(index)),
        instruction=rng.choice(
            [
                f"Save the {wanted} column of {name}.csv in {out}.txt, with its header.",
                f"Extract the column {wanted} from {name}.csv to {out}.txt. Keep the header line.",
            ]
        ),
        files={f"{name}.csv": column([",".join(row) for row in rows])},
        turns=[f"head -n 1 {name}.csv", f"cut -d, -f{index + 1} {name}.csv > {out}.txt"],
        wrong=rng.choice(
            [
                [f"cut -d, -f{(index + 1) % 3 + 1} {name}.csv > {out}.txt"],
                [f"grep {wanted} {name}.csv > {out}.txt"],
                [
                    f"head -n 1 {name}.csv",
                    f"cut -d, -f{(index + 2) % 3 + 1} {name}.csv > {out}.txt",
                ],
            ]
        ),
        check=holds(f"{out}.txt", [row[index] for row in rows]),
    )


@family("csv-max", "medium", "data-processing")
def csv_max(rng: Random) -> Draft:
    name, out, *people = take(rng, 6)
    scores = rng.sample(range(10, 100), 4)
    # The best row is never the last, so that the plain end of the file is a wrong answer.
    best = max(range(4), key=scores.__getitem__)
    if best == 3:
        scores[0], scores[3] = scores[3], scores[0]
        best = 0
    low = min(range(4), key=scores.__getitem__)
    rows = [f"{person},{score}" for person, score in zip(people, scores, strict=True)]
    return Draft(
        params=(name, out, people[best]),
        instruction=rng.choice(
            [
                f"Who has the highest score in {name}.csv? Write the name to {out}.txt.",
                f"Find the best score in {name}.csv and save that player's name in {out}.txt.",
            ]
        ),
        files={f"{name}.csv": column(["name,score", *rows])},
        turns=[f"sort -t, -k2 -n {name}.csv | tail -n 1", f"echo {people[best]} > {out}.txt"],
        wrong=rng.choice(
            [
                [f"tail -n 1 {name}.csv", f"echo {people[3]} > {out}.txt"],
                [f"sort -t, -k2 -n {name}.csv | head -n 2", f"echo {people[low]} > {out}.txt"],
                [f"sort -t, -k2 -n {name}.csv | tail -n 1 > {out}.txt"],
            ]
        ),
        check=says(f"{out}.txt", people[best]),
    )


@family("json-edit", "medium", "software-engineering")
def json_edit(rng: Random) -> Draft:
    name, word = take(rng, 2)
    key, other = rng.sample(["port", "size", "limit", "workers", "retries"], 2)
    old, new, kept = rng.sample(range(10, 100), 3)
    pairs = [f'"name": "{word}"', f'"{key}": {old}', f'"{other}": {kept}']
    rng.shuffle(pairs)
    wanted = "{" + ",".join(pairs).replace(f": {old}", f": {new}").replace(" ", "") + "}"
    return Draft(
        params=(name, key, str(old), str(new)),
        instruction=rng.choice(
            [
                f"Change {key} in {name}.json to {new}.",
                f"{name}.json has the wrong {key}. It should be {new}; keep the rest.",
                f"Set the {key} to {new} in {name}.json.",
            ]
        ),
        files={f"{name}.json": "{\n  " + ",\n  ".join(pairs) + "\n}\n"},
        turns=[f"cat {name}.json", f"sed -i 's/{old}/{new}/' {name}.json"],
        wrong=rng.choice(
            [
                [f"sed -i 's/{key}/{new}/' {name}.json"],
                [f"cat {name}.json", f"sed -i 's/{kept}/{new}/' {name}.json"],
                [f"cat {name}.json", f"echo {new} > {name}.json"],
            ]
        ),
        check=f"[ \"$(tr -d ' \\n' < {name}.json)\" = '{wanted}' ]",
    )
