"""The fuzzer: random attention-like programs, rewritten and compared with eager.

`grammar` says what a program is and writes one from a seed; `runner` runs and judges it;
`python -m tests.fuzz --seeds N` runs many. Nothing here shares code with the matcher.
"""
