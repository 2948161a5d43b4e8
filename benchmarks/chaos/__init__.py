"""Faults on real runs, and whether each run comes out whole: python -m benchmarks.chaos --help"""
