"""How the package registers itself with torch: rules of torch.library and of Dynamo's backends that
differ from version to version.
"""

import pytest
import torch
import torch.nn.functional as F

import gdpa_inductor.look_up  # noqa: F401

gdpa = torch.ops.gdpa
OFFSETS = torch.tensor([0, 2, 5])


def attention(q, k, v, *lengths):
    return gdpa.attention(q, k, v, [], [], "silu(s)", "", *lengths)


def rows(*size: int) -> torch.Tensor:
    return torch.randn(size, dtype=torch.float64, requires_grad=True)


# An operator, its operands, and what it means. Arguments that have defaults are left out or given.
GRADIENTS = {
    "attention": (
        attention, [rows(1, 2, 3, 4) for _ in range(3)], lambda q, k, v: F.silu(q @ k.mT) @ v
    ),
    "attention_sums": (
        lambda q, k, v: torch.cat([
            x.flatten() for x in gdpa.attention_sums(q, k, v, [], [], "t0=silu(s); r=t0; t0", "")
        ]),
        [rows(1, 2, 3, 4) for _ in range(3)],
        lambda q, k, v: torch.cat([
            (F.silu(q @ k.mT) @ v).flatten(), F.silu(q @ k.mT).sum(-1).flatten()
        ]),
    ),
    "jagged attention": (
        lambda q, k, v: attention(q, k, v, OFFSETS, OFFSETS, 3, 3),
        [rows(5, 2, 4) for _ in range(3)],
        lambda q, k, v: torch.cat([
            (F.silu(q[a:b].transpose(0, 1) @ k[a:b].permute(1, 2, 0)) @ v[a:b].transpose(0, 1))
            .transpose(0, 1)
            for a, b in ((0, 2), (2, 5))
        ]),
    ),
    "kept": (gdpa.kept, [rows(3)], lambda x: x),
    "kept in a dtype": (lambda x: gdpa.kept(x, torch.float64), [rows(3)], lambda x: x),
    "look_up": (
        lambda table: gdpa.look_up(table, OFFSETS, 0), [rows(6, 2)], lambda table: table[OFFSETS]
    ),
    "jagged_to_padded_dense": (
        lambda values: gdpa.jagged_to_padded_dense(values, OFFSETS, 3),
        [rows(5, 2)],
        lambda values: torch.stack([F.pad(values[:2], (0, 0, 0, 1)), values[2:]]),
    ),
    "dense_to_jagged": (
        lambda dense: gdpa.dense_to_jagged(dense, OFFSETS, 5),
        [rows(2, 3, 2)],
        lambda dense: torch.cat([dense[0, :2], dense[1, :3]]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_backward_gives_as_many_gradients_as_torch_wants(name: str):
    """One for each argument that was passed (2.13), or for each that the schema has (2.15)."""
    operator, operands, meaning = GRADIENTS[name]
    out, wanted = operator(*operands), meaning(*operands)
    torch.testing.assert_close(out, wanted)
    grad = torch.randn_like(out)
    torch.testing.assert_close(
        torch.autograd.grad(out, operands, grad), torch.autograd.grad(wanted, operands, grad)
    )


def test_every_operator_with_a_backward_is_among_them():
    names = {
        name.split("::")[1].split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("gdpa::")
        and torch._C._dispatch_has_kernel_for_dispatch_key(name, "Autograd")
    }
    backwards = {"attention_backward", "look_up_backward"}  # those of others
    assert names - backwards == {name.split(" ")[-1] for name in GRADIENTS} & names


def test_dynamo_knows_the_backend_by_its_name():
    assert "gdpa" in torch._dynamo.list_backends()
    assert torch._dynamo.lookup_backend("gdpa").__name__ == "gdpa_backend"
    with pytest.raises(Exception, match="gdpaa"):
        torch.compile(torch.sin, backend="gdpaa")(torch.ones(2))
