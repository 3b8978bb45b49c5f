"""A second, hostile generator of programs, and a runner that holds every rewrite against eager.

It is written from torch's operators and the documentation of autograd. It imports nothing of the
matcher, so that the two do not share a blind spot.

    python -m tests.adversary --seeds 1000 --workers 2 --show wrong --json results.jsonl

    program      one program: source text, operands, labels
    draft        a program while it is being written
    regions      attention that is right to rewrite, dense and jagged
    hostilities  what is done to it: a table
    generator    seed -> program
    judging      runs a program in eager and rewritten, and compares
    runner       many programs, resumable
    hunts        programs that people wrote to break the package
"""
