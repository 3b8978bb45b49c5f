"""What `_compat.autograd` says of real tensors, graphs of autograd and modes of a thread."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from gdpa_inductor._compat import autograd


class Doubles(torch.autograd.Function):
    """An autograd function of a user."""

    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, grad):
        return grad * 2.0


def test_gradient_edge():
    leaf = torch.ones(4, requires_grad=True)
    first, second = leaf.chunk(2)
    assert autograd.gradient_edge(leaf) == (None, id(leaf))
    assert autograd.gradient_edge(first) == (first.grad_fn, 0)
    assert autograd.gradient_edge(second) == (first.grad_fn, 1)


def test_leaf_of():
    leaf = torch.ones(4, requires_grad=True)
    product = (leaf * 2).grad_fn
    ((added, _),) = [edge for edge in product.next_functions if edge[0] is not None]
    assert autograd.leaf_of(added) == autograd.gradient_edge(leaf)
    assert autograd.leaf_of(product) is None


def test_is_of_user():
    x = torch.ones(4, requires_grad=True)
    assert autograd.is_of_user(Doubles.apply(x).grad_fn)
    assert not autograd.is_of_user((x * 2).grad_fn)


def test_is_of_user_of_an_operator_with_a_backward_of_its_own():
    """torch.library makes an autograd function for `register_autograd`."""
    with torch.library._scoped_library("gdpa_compat", "FRAGMENT") as library:
        library.define("doubled(Tensor x) -> Tensor")
        library.impl("doubled", lambda x: x * 2, "CPU")
        torch.library.register_autograd(
            "gdpa_compat::doubled", lambda ctx, grad: grad * 2, lib=library
        )
        result = torch.ops.gdpa_compat.doubled(torch.ones(4, requires_grad=True))
        assert result.grad_fn is not None and not autograd.is_of_user(result.grad_fn)


def test_base_of():
    x = torch.zeros(3, 2)
    assert autograd.base_of(x) is None and autograd.base_of(x.detach().T[0]) is not x
    assert autograd.base_of(x.T[0]) is x


def test_is_view():
    x = torch.ones(4)
    assert autograd.is_view(x[1:]) and autograd.is_view(x.view(2, 2))
    assert not autograd.is_view(x) and not autograd.is_view(x * 2)


def test_is_leaf():
    x = torch.ones(4, requires_grad=True)
    assert autograd.is_leaf(x) and not autograd.is_leaf(x * 2)
    base = torch.ones(4)
    with torch.no_grad():
        view = base[1:]
    base.mul_(x)
    with pytest.raises(RuntimeError):
        view.is_leaf
    assert not autograd.is_leaf(view)


def test_is_fragile_view():
    x = torch.ones(4, requires_grad=True)
    with torch.no_grad():
        view = x[1:]
    assert autograd.is_fragile_view(view)
    with pytest.raises(RuntimeError, match="no_grad mode"):
        view.mul_(2)
    assert not autograd.is_fragile_view((x * 2)[1:])
    assert not autograd.is_fragile_view(x)


def test_version_of():
    x = torch.ones(4)
    assert autograd.version_of(x) == 0
    x.mul_(2)
    x[1:].mul_(2)
    assert autograd.version_of(x) == 2
    x.data.mul_(2)
    assert autograd.version_of(x) == 2
    with torch.inference_mode():
        assert autograd.version_of(torch.ones(4).mul_(2)) == 0


def test_has_tangent():
    x, tangent = torch.ones(4), torch.full((4,), 3.0)
    with torch.inference_mode():
        unseen = torch.ones(4)
    assert not autograd.has_tangent(x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        assert autograd.has_tangent(dual) and autograd.has_tangent(dual * 2)
        assert not autograd.has_tangent(x) and not autograd.has_tangent(unseen)
        assert torch.equal(forward_ad.unpack_dual(dual * 2).tangent, tangent * 2)
    with forward_ad.dual_level():  # the level was left as it was found
        pass


def test_autocasts():
    assert not autograd.autocasts()
    with torch.autocast("cpu", torch.bfloat16):
        assert autograd.autocasts() == [("cpu", torch.bfloat16)]
        with torch.autocast("cpu", enabled=False):
            assert not autograd.autocasts()


def test_saved_tensor_hooks_set_aside():
    packed = []

    def hooks(name):
        return torch.autograd.graph.saved_tensors_hooks(
            lambda x: packed.append(name) or x, lambda x: x
        )

    x = torch.ones(4, requires_grad=True)
    with hooks("outer"), hooks("inner"):
        with pytest.raises(KeyError), autograd.saved_tensor_hooks_set_aside():
            x.exp()
            raise KeyError
        assert packed == []
        x.exp()
        assert packed == ["inner"]
    x.exp()
    assert packed == ["inner"]


def test_saved_tensor_hooks_set_aside_in_a_checkpoint():
    """Non-reentrant checkpoints count what is saved, and refuse another count."""

    def forward(x):
        if not counted:
            counted.append(True)
            with autograd.saved_tensor_hooks_set_aside():
                torch.ones(4, requires_grad=True).exp()
        return x.exp()

    counted: list[bool] = []
    x = torch.ones(4, requires_grad=True)
    checkpoint(forward, x, use_reentrant=False).sum().backward()
    assert torch.equal(x.grad, x.exp())


class Counts(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_plain_torch():
    mkldnn = torch._C._get_mkldnn_enabled()
    with Counts() as mode, torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        with torch.autograd.set_detect_anomaly(True), autograd.plain_torch():
            assert not torch._C._get_mkldnn_enabled() and not torch.is_anomaly_enabled()
            x = torch.full((2, 2), -1.0, requires_grad=True)
            product = x @ x
            assert product.dtype == torch.float32 and product.requires_grad
            assert not product.is_inference()
            torch.autograd.grad(product.sqrt().sum() * torch.nan, x)
            assert mode.count == 0
        assert torch.is_inference_mode_enabled() and torch.is_autocast_enabled("cpu")
        assert torch._C._get_mkldnn_enabled() == mkldnn
        torch.ones(2)
    assert mode.count == 1


def modes() -> list:
    return [
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cuda"), torch.is_autocast_cache_enabled(),
        torch._C._functorch.get_interpreter_stack() or [],
        torch.initial_seed(), torch.get_rng_state().tolist(),
    ]  # fmt: skip


def leave_open() -> None:
    """What the interpretation of a graph may leave behind, if it ends half way."""
    functorch = torch._C._functorch
    functorch._vmap_increment_nesting(2, "different")
    functorch._grad_increment_nesting()
    functorch._jvp_increment_nesting()
    torch._C._enter_dual_level()
    torch.amp.autocast_mode._enter_autocast("cpu", torch.float16, True, True)
    torch._C._set_grad_enabled(False)
    torch.set_autocast_enabled("cuda", True)
    torch.rand(3)


def test_restored_state():
    before = modes()
    with Counts() as mode:
        with pytest.raises(KeyError), autograd.restored_state():  # it shows the mode nothing
            torch.ones(2)
            assert mode.count == 0
            leave_open()
            raise KeyError
        torch.ones(2)
        assert mode.count == 1
    assert modes() == before
    with forward_ad.dual_level():
        pass
    assert torch.vmap(lambda x: x * 2)(torch.ones(2, 3)).shape == (2, 3)
    with torch.autocast("cpu", torch.bfloat16):  # the nesting is right: the cache ends with it
        pass
    assert torch.is_autocast_cache_enabled() == before[5]


def test_restored_state_keeps_what_was_open():
    """A level of forward mode, and a transform, that the caller has entered."""
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2), torch.ones(2))
        with autograd.restored_state():
            torch._C._functorch._grad_increment_nesting()
        assert autograd.has_tangent(dual)

    def inside(x):
        with autograd.restored_state():
            torch._C._functorch._grad_increment_nesting()
        return x.square().sum()

    assert torch.equal(torch.func.grad(inside)(torch.ones(2)), torch.full((2,), 2.0))


def test_restored_state_under_fakes_of_the_caller():
    """A fake mode refuses the comparison of real tensors, and those of the generator are real."""
    before = torch.get_rng_state()
    with FakeTensorMode():
        with autograd.restored_state():
            assert type(torch.rand(3)) is torch.Tensor
        assert type(torch.ones(3)) is not torch.Tensor
    assert torch.equal(torch.get_rng_state(), before)


def test_backward_runs_once():
    answers = []

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, grad):
            answers.append(autograd.backward_runs_once())
            return grad

    assert not autograd.backward_runs_once()
    y = Looks.apply(torch.ones(2, requires_grad=True))
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert answers == [False, True]


def test_is_observed():
    assert not autograd.is_observed()
    seen = []
    with FlopCounterMode(display=False):
        assert autograd.is_observed()
    with forward_ad.dual_level():
        assert autograd.is_observed()
    torch.vmap(lambda x: seen.append(autograd.is_observed()) or x)(torch.ones(2))
    assert seen == [True] and not autograd.is_observed()
