"""GDPA on Blackwell (sm_100a), in CuTe DSL. `config` is free of cutlass; the other modules import
it, and are themselves imported only when a kernel is compiled."""
