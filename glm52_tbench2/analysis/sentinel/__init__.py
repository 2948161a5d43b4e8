"""Is this run healthy? Judged after every step, inside the run or from its files alone.

`facts` keeps of each step what judging needs, `detectors` judge, `watch` acts.
"""
