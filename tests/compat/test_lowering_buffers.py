"""The buffers and layouts that `_compat.lowering` makes while Inductor lowers a graph."""

from typing import Any

import torch
from torch._inductor import ir

from gdpa_inductor._compat import lowering

from .lowered import CPU, during, layout, written

aten = torch.ops.aten


def test_copied():
    """A buffer with the strides of the capture, in the dtype that is asked for."""

    def look(x, y, size):
        copy, cast = lowering.copied(x), lowering.copied(y, torch.bfloat16)
        names = {node.get_name() for node in (x, y, copy, cast)}
        assert len(names) == 4 and not lowering.is_input(copy)
        return layout(copy), copy.get_dtype(), cast.get_dtype()

    x, y = torch.ones(6, 4).mT, torch.ones(4, 6)
    (sizes, strides), dtype, cast = during(look, x, y)
    assert strides == [6, 1] or strides == list(torch.empty_like(x).stride())
    assert sizes == [4, 6] and (dtype, cast) == (torch.float32, torch.bfloat16)


def test_contiguous():
    def look(x, y, size):
        moved = lowering.lowered(aten.permute.default, x, [1, 0])
        return layout(lowering.contiguous(moved)), layout(lowering.contiguous(x))

    assert during(look) == (([6, 4], [4, 1]), ([4, 6], [6, 1]))


def test_realized():
    """A buffer of settled layout, or a strided view of one."""

    def look(x, y, size):
        moved = lowering.lowered(aten.permute.default, x, [1, 0])
        buffers = [lowering.realized(node, CPU) for node in (x, moved)]
        buffers.append(lowering.realized(lowering.lowered(aten.add.Tensor, x, y), CPU))
        buffers.append(lowering.realized(x, torch.device("meta")))
        assert not any(isinstance(node.get_layout(), ir.FlexibleLayout) for node in buffers)
        return [(node.get_device(), *layout(node)) for node in buffers]

    plain, viewed, computed, moved = during(look)
    assert plain == computed == (CPU, [4, 6], [6, 1]) and viewed == (CPU, [6, 4], [1, 6])
    assert moved == (torch.device("meta"), [4, 6], [6, 1])


def test_on_device():
    def look(x, *_):
        return [lowering.on_device(x, device) for device in (CPU, torch.device("meta"))] + [x]

    same, moved, x = during(look)
    assert same is x and moved.get_device() == torch.device("meta")


def test_layout_of():
    def look(x, y, size):
        *_, extent = lowering.lowered_node_values()
        strided = lowering.layout_of((6, extent), torch.float16, CPU, (1, 6))
        plain = lowering.layout_of((6, extent), torch.float16, CPU)
        assert isinstance(plain, ir.FixedLayout)
        assert (plain.dtype, plain.device) == (torch.float16, CPU)
        return list(strided.size), list(strided.stride), list(plain.stride)

    assert during(look) == ([6, 4], [1, 6], [4, 1])
    size, stride, plain = during(look, dynamic=True)
    assert size[1].is_Symbol and stride == [1, 6] and plain == [size[1], 1]


def test_empty():
    """A buffer that nothing fills."""

    def lower(x, y, size):
        plain = lowering.empty((6, 4), torch.float16, CPU)
        strided = lowering.empty((6, 4), torch.float16, CPU, (1, 6))
        layouts.extend(map(layout, (plain, strided)))
        for node in (plain, strided):
            node.realize()
        return lowering.lowered(aten.add.Tensor, x, y)

    layouts: list[Any] = []
    written(lower)
    assert layouts == [([6, 4], [4, 1]), ([6, 4], [1, 6])]


def test_zeros():
    def look(x, y, size):
        *_, extent = lowering.lowered_node_values()
        node = lowering.zeros((extent, 6), torch.float16, CPU)
        assert not lowering.is_in_memory(node)
        return list(node.get_size()), node.get_dtype()

    assert during(look) == ([4, 6], torch.float16)
    assert during(look, dynamic=True)[0][0].is_Symbol


def test_zeroed():
    """Two of them are two buffers, for kernels that add to them."""

    def look(x, y, size):
        nodes = [lowering.zeroed((4, 6), torch.float32, CPU) for _ in range(2)]
        assert all(map(lowering.is_in_memory, nodes))
        return len({node.get_name() for node in nodes}), layout(nodes[0])

    assert during(look) == (2, ([4, 6], [6, 1]))
