"""GDPA on Blackwell (sm_100a). `config` is free of cutlass; the others
import it, and are themselves imported only when a kernel is compiled.
"""
