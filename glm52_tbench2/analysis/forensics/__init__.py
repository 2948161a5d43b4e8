"""What went wrong in a run, by its files alone: since when, where, by what mechanism.

`source` reads a step of any layout, `scan` reduces it to its turns, `families` finds the turns that
come again and `members` reads these a second time; `measures` are the numbers of the whole run, on
which `mechanisms` are judged. `examine` does all of it.
"""
