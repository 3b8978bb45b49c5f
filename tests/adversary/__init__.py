"""Random programs, plain and hostile, and a runner that holds every rewrite against eager.

It is written from torch's operators and the documentation of autograd. It imports nothing of the
matcher, so that the two do not share a blind spot.

    python -m tests.adversary --seeds 1000 --workers 2 --show wrong --json results.jsonl

    program      one program: source text, operands, labels
    draft        a program while it is being written
    generator    seed -> program, by the grammar:
                 regions, products, views, steps, sizes, spellings, jagged, padding, decoys
    hostilities  what is done to it: a table
    judging      runs a program in eager and rewritten, and compares
    runner       many programs, resumable
    compiled     programs through Inductor, plain ones at sizes of kernels
    hunts        programs that people wrote to break the package
"""
