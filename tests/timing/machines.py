"""The parameters of the model, with their sources. docs/timing_model.md explains them.

Rates without a note are NVIDIA's. "Calibrated" says from how many figures (`figures.json`).
"""

from dataclasses import replace

from .engine import Machine

H200 = Machine(
    name="H200",
    processors=132,
    tensor=4096,
    shared=128,
    mufu=16,
    l2=64,  # assumed
    hbm=4.25e12,  # a copy of 1 GiB, measured
    adds=16,  # calibrated, as what follows: 24 figures
    latency=500,
    far=600,
    cpi=4.0,
    signal=40,
    drain=100,
    held=0.5,
    operand=36,
    fills=0.3,
    launch=3e-6,
    dirty=50e6,  # NVIDIA's: its L2 cache
)

B200 = replace(
    H200,
    name="B200",
    processors=148,
    tensor=8192,
    hbm=7.2e12,  # assumed: 90 % of 8 TB/s, as much as a copy has on the H200
    adds=17,  # calibrated, as what follows: three figures
    cpi=2.6,
    gap=75,
    held=0.0,  # products have no operands in registers
    operand=0.0,
    tmem=512,  # assumed
    dirty=126e6,
    mhz=1965,  # at most
)
B300 = replace(B200, name="B300", mufu=32)
