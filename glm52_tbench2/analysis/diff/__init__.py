"""`glm52 diff`: what differs between runs, what that does to a comparison, and how they came out.

sides (what was run) -> compare (what differs) -> causes (what that allows to conclude) and
experiments (what would tell more); outcomes reads the runs; terminal, page and as_json show it.
"""
