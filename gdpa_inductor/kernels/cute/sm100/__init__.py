"""GDPA on Blackwell (sm_100a). `config` and `backward.limits` are free of cutlass; the others
import it, and are themselves imported only when a kernel is compiled.
"""
