"""Call: one gdpa::attention, or one backward, that Inductor is about to lower."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .._compat import lowering
from ..operands import Operands
from ..ops import Arguments, Signature
from ..options import KernelOptions
from ..problem import Problem


@dataclass(frozen=True)
class Call:
    """One call of the op."""

    signature: Signature
    nodes: Arguments[Any]  # the arguments as Inductor IR
    fakes: Arguments[Any]  # the arguments as fake tensors
    problem: Problem
    options: KernelOptions

    @staticmethod
    def of(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """From the arguments that Inductor passes to a lowering."""
        nodes = signature.bind(*args, **kwargs)
        fakes = signature.bind(*lowering.lowered_node_values())
        return Call(
            signature=signature,
            nodes=nodes,
            fakes=fakes,
            problem=Problem.of(fakes.operands, signature.backward, fakes.needs),
            options=KernelOptions.parse(nodes.options["kernel_options"]),
        )

    @staticmethod
    def of_fakes(
        signature: Signature, operands: Operands[Any], options: str, needs: tuple[bool, ...] = ()
    ) -> Call:
        """A call that is not lowered yet. Fake tensors stand for its IR. options: As text."""
        arguments = Arguments(operands, None, needs, {"kernel_options": options})
        problem = Problem.of(operands, signature.backward, needs)
        return Call(signature, arguments, arguments, problem, KernelOptions.parse(options))

    @property
    def backward(self) -> bool:
        return self.signature.backward

    @property
    def static(self) -> bool:
        """Whether all sizes and strides are numbers, not symbols."""
        return self._has_numbers(lambda x: x.shape)

    @property
    def static_but_rows(self) -> bool:
        """The same, where the total rows of jagged sides may be symbols."""
        o = self.fakes.operands
        matrices = (o.query, o.key, o.value, self.fakes.grad_out)
        jagged = [id(x) for x in matrices if x is not None and x.dim() == 3]
        return self._has_numbers(lambda x: x.shape[id(x) in jagged :])

    def _has_numbers(self, shape_of: Callable[[torch.Tensor], Sequence[Any]]) -> bool:
        items = (*self.fakes.operands.flat(), self.fakes.grad_out)
        fakes = [x for x in items if isinstance(x, torch.Tensor)]
        bounds = self.fakes.operands.lengths[2:]
        sizes = [size for x in fakes for size in (*shape_of(x), *x.stride())]
        return all(type(size) is int for size in (*sizes, *bounds))

    def on_its_device(self, **options: Any) -> Arguments[Any]:
        """The arguments with these options, all on the device of the query: aux operands without
        dimensions may be on the host.
        """
        device = self.operands.query.get_device()
        aux = [lowering.realized(x, device) for x in self.operands.aux]
        return replace(self.nodes, operands=self.operands.with_aux(aux), options=options)

    @property
    def operands(self) -> Operands[Any]:
        return self.nodes.operands

    @property
    def fx_operands(self) -> Operands[Any]:
        """The operands as FX nodes, while the call is lowered."""
        return self.signature.bind(*lowering.node_arguments()).operands

    @property
    def needs(self) -> tuple[bool, ...]:
        """Which gradients are wanted: of query, key, value and each aux operand."""
        return self.nodes.needs


def in_order(options: KernelOptions) -> bool:
    """Whether gradients must be bitwise equal from run to run, by our option or by torch's."""
    return options.deterministic or torch.are_deterministic_algorithms_enabled()


def extern_call(
    signature: Signature, arguments: Arguments[Any], callee: tuple[str, str, str] | None = None
) -> Any:
    """Put a call of an operator into the generated code. A backward gives a list of results.

    callee: Python code calls it instead, as `lowering.direct_call` says.
    """
    args, kwargs = signature.call(arguments)
    if callee is None:
        result = lowering.extern_call(signature.op, *args, **kwargs)
    else:
        result = lowering.direct_call(signature.op, callee, *args, **kwargs)
    return list(result) if signature.several else result
