"""The small model's start: tokenizer, demonstrations, supervised training and its measure.

`python -m glm52_tbench2.trainer.warm_start --out data/tiny` rebuilds what the repository holds.
"""
