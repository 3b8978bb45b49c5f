"""CPU tensors presented as device memory."""

import ctypes

import torch

KDL_CUDA = 2


class _DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DLTensor(ctypes.Structure):
    """The head of DLTensor (and of DLManagedTensor) in dlpack.h."""

    _fields_ = [("data", ctypes.c_void_p), ("device", _DLDevice)]


class device:
    """A CPU tensor that says, through DLPack, that it lies on a GPU.

    Code compiled for it is the code compiled for a GPU tensor; the emulator finds it by its
    address.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return KDL_CUDA, 0

    def __dlpack__(self, **_: object) -> object:
        capsule = self.tensor.detach().__dlpack__()
        api = ctypes.pythonapi
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        address = api.PyCapsule_GetPointer(capsule, b"dltensor")
        _DLTensor.from_address(address).device.device_type = KDL_CUDA
        return capsule
