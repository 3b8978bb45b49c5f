"""Run two graphs, before and after a rewrite, side by side on fakes.

A node that both graphs have is run once, as long as both pass the same values to it. Other nodes
are run for one graph. If the graphs pass different tensors to a common node, `agree` decides
whether these are equal. If so, the rest of the graph is common again. So only a few pairs of
tensors have to be proved equal, and all else is equal by construction.

If they are not, the common node is run twice. Then it must not write, and its result must be proved
equal later. A node of one graph may write only to storages that this graph has made itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from .._compat import autograd, fx, operators, subclasses
from . import calls, draws
from .inputs import GraphInputs
from .record import Log, Recorder, Ref, tensors_of
from .verdict import Fault, Incomplete


@dataclass(frozen=True)
class Claim:
    """The claim that tensor `after` equals tensor `before`, by the names of their nodes.

    of_sums: A fused call with row sums gives `after`.
    """

    before: Tensor
    after: Tensor
    after_node: str
    of_sums: bool = False


@dataclass(frozen=True)
class Saved:
    """A tensor that autograd saves for the backward: its place, the time, and the graph.

    version: How many writes autograd has seen by then.
    """

    ref: Ref
    time: int
    side: str
    node: str
    tensor: Tensor
    version: int


Agree = Callable[["SideBySide", Claim], bool]
Edge = tuple[Any, int]
# For each graph (names are unique only within one): from nodes to the nodes that they replace.
Claims = Mapping[GraphModule, Mapping[str, str]]


@dataclass
class SideBySide:
    """One run of two graphs.

    agree:    Decides a claim. It returns False if the claim cannot be proved, and may raise Fault.
    claims:   Which nodes of the original some nodes of the rewritten graph replace.
    edges:    The edges of autograd's graph for each common value, at each use.
    cuts:     The common values that nodes of the rewritten graph alone use.
    saved:    The tensors that autograd saves.
    fragile:  Storages of results that are views made without gradients: since when, of which node.
    views:    Values that are views only in the rewritten graph.
    derived:  Nodes of the user's autograd functions whose backward is known to be the derivative.
    leaves:   The leaves that the graph makes itself.
    shown:    Storages that were passed to a common node while there were such leaves.
    dropped:  Storages of leaves that the rewritten graph does not reach, with their nodes.
    results:  The results of the graphs.
    proved:   The claims that hold.
    """

    agree: Agree
    claims: Claims
    log: Log = field(default_factory=Log)
    inputs: GraphInputs = field(default_factory=GraphInputs)
    edges: dict[str, list[Edge]] = field(default_factory=dict)
    cuts: dict[str, None] = field(default_factory=dict)
    saved: list[Saved] = field(default_factory=list)
    fragile: list[tuple[int, int, str]] = field(default_factory=list)
    views: list[Tensor] = field(default_factory=list)
    derived: list[Any] = field(default_factory=list)
    leaves: dict[int, Tensor] = field(default_factory=dict)
    shown: set[int] = field(default_factory=set)
    dropped: list[tuple[int, str]] = field(default_factory=list)
    results: list[Tensor] = field(default_factory=list)
    proved: list[Claim] = field(default_factory=list)
    node: str = ""

    def run(self, before: GraphModule, after: GraphModule) -> None:
        """Run both graphs.

        Raises Fault if they differ, and Incomplete if that cannot be decided.
        """
        switches = [
            fx.state_change(n.target) for n in before.graph.nodes if n.op == "call_function"
        ]
        # A graph with function transforms forbids hooks.
        hooks: Any = contextlib.nullcontext()
        if "transform" not in switches:
            hooks = torch.autograd.graph.saved_tensors_hooks(self._save, lambda x: x)
        with autograd.restored_state(), self.inputs.mode:
            inputs = self.inputs.of_graph(before)
            with Recorder(self.log), hooks:
                self.log.referred([subclasses.parts_of(x) for x in inputs])
                results = Bodies(self, before, after, "", iter(inputs)).run()
        self.results = [x for x in tensors_of(results) if x.layout == torch.strided]

    def _save(self, tensor: Tensor) -> Tensor:
        if tensor.layout == torch.strided and type(tensor).__name__ == "FakeTensor":
            ref = self.log.ref(tensor)
            seen = autograd.version_of(tensor)
            self.saved.append(Saved(ref, self.log.now, self.log.side, self.node, tensor, seen))
        return tensor


@dataclass
class Bodies:
    """A graph and its rewritten form.

    path:    The calls that lead to it.
    inputs:  The values of its placeholders.
    values:  What the nodes return.
    others:  What differs in the rewritten graph.
    """

    whole: SideBySide
    before: GraphModule
    after: GraphModule
    path: str
    inputs: Iterator[Any]
    values: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Any:
        """Run both, and return their results."""
        result: Any = None
        for nodes in self._merged():
            self.whole.node = next(iter(nodes.values())).name
            if len(nodes) == 2:
                result = self._common(nodes["before"], nodes["after"])
                continue
            for side, node in nodes.items():
                self._alone(node, side)
        draws.check_order(self.whole.log, self.whole.node)
        return result

    def _merged(self) -> Iterator[dict[str, Node]]:
        """Nodes of both graphs in order, with each graph's own ones between them: by graph."""
        olds, news = list(self.before.graph.nodes), list(self.after.graph.nodes)
        both = {n.name for n in olds} & {n.name for n in news}
        if [n.name for n in olds if n.name in both] != [n.name for n in news if n.name in both]:
            raise Fault("the order of the remaining nodes has changed")
        rest = iter(news)
        for old in olds:
            if old.name not in both:
                yield {"before": old}
                continue
            for new in rest:
                if new.name == old.name:
                    yield {"before": old, "after": new}
                    break
                yield {"after": new}

    # Values

    def _value(self, node: Node, side: str) -> Any:
        if side == "after" and node.name in self.others:
            return self.others[node.name]
        return self.values[node.name]

    def _arguments(self, node: Node, side: str) -> Any:
        return torch.fx.map_arg((node.args, node.kwargs), lambda n: self._value(n, side))

    def _alone(self, node: Node, side: str) -> None:
        """Run a node that one graph alone has: what it draws has a counterpart, or others shift."""
        first = self.whole.log.now
        self._own(node, side)
        draws.note(self.whole.log, self.whole.log.events[first:], node.name)
        if side == "after":  # decide what it is said to stand for, before another call uses it
            before = self.whole.claims.get(self.after, {}).get(node.name, "")
            self._agree(self.values.get(before), self.others[node.name], before, node.name)

    def _agree(self, a: Any, b: Any, before: str, after: str) -> bool:
        """Decide a claim. From then on its two tensors are one."""
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or _kind(a) != _kind(b):
            return False
        if not self.whole.agree(self.whole, Claim(a, b, after)):
            return False
        self.others[after] = self.values[before]
        self.whole.log.share(a)
        return True

    def _own(self, node: Node, side: str) -> None:
        """Run a node for one graph."""
        log = self.whole.log
        log.side, first = side, log.now
        try:
            for operand in node.all_input_nodes:
                self._note_use(operand, side)
            result = self._run(node, side)
        finally:
            log.side = "both"
        (self.values if side == "before" else self.others)[node.name] = result
        for event in log.events[first:]:
            for place, _ in event.writes:
                if log.owner[place.storage] != side:
                    word = "lost" if side == "before" else "added"
                    raise Fault(f"the write of `{event.name}` is {word}", node.name)

    def _common(self, old: Node, new: Node) -> Any:
        """Run a node of both graphs: once if both give it the same, else for each."""
        if old.op != new.op or (old.op != "get_attr" and old.target != new.target):
            raise Fault(f"`{old.name}` calls something else", new.name)
        for operand in old.all_input_nodes:
            self._note_use(operand, "before")
            self._note_shown(operand)
        first = self.whole.log.now
        agreed = self._agreed(old, new)
        if old.op == "output":
            if not agreed:
                raise Fault("the graph returns something else", new.name)
            return self._arguments(old, "before")[0][0]
        if agreed:
            self.values[old.name] = self._run(old, "before", new)
            if isinstance(self.values[old.name], GraphModule):
                self.others[new.name] = self._run(new, "after")
        else:
            log = self.whole.log
            first = log.now
            self._own(old, "before")
            middle = log.now
            self._own(new, "after")
            if calls.drawn(log.events[first:middle]) != calls.drawn(log.events[middle:]):
                raise Fault(f"`{old.name}` draws other random numbers", new.name)
        if calls.drawn(self.whole.log.events[first:]):
            draws.check_order(self.whole.log, new.name)
        return None

    def _agreed(self, old: Node, new: Node) -> bool:
        """Whether both graphs give a node the same, be it by a claim."""
        lefts, rights = self._flat(old, "before"), self._flat(new, "after")
        if len(lefts) != len(rights):
            return False
        for (a, before), (b, after) in zip(lefts, rights):
            if a is b or isinstance(a, GraphModule):
                continue
            if isinstance(a, Tensor) and isinstance(b, Tensor):
                if not self._agree(a, b, before, after):
                    return False
            elif type(a) is not type(b) or a != b:
                return False
        return True

    def _flat(self, node: Node, side: str) -> list[tuple[Any, str]]:
        """Every value that a node is given, with the name of the node that it comes from."""
        values: list[tuple[Any, str]] = []
        arguments = (node.args, node.kwargs)
        for leaf in fx.tree_leaves(arguments, is_leaf=lambda x: isinstance(x, slice)):
            parts = (leaf.start, leaf.stop, leaf.step) if isinstance(leaf, slice) else (leaf,)
            for part in parts:
                if isinstance(part, Node):
                    values += [(x, part.name) for x in fx.tree_leaves(self._value(part, side))]
                else:
                    values.append((part, ""))
        return values

    def _note_use(self, node: Node, side: str) -> None:
        """Where a common value stands in autograd's graph, now that it is used."""
        if node.name in self.others or node.name not in self.values:
            return
        key = self.path + node.name
        if side == "after":
            self.whole.cuts[key] = None
        known = self.whole.edges.setdefault(key, [])
        for tensor in tensors_of(self.values[node.name]):
            if tensor.requires_grad and torch.is_grad_enabled():
                edge = autograd.gradient_edge(tensor)
                if edge not in known:
                    known.append(edge)

    def _note_shown(self, node: Node) -> None:
        """A node of both graphs may return a leaf of the graph, or ask for its gradient."""
        for tensor in tensors_of(self.values[node.name]) if self.whole.leaves else ():
            if tensor.layout == torch.strided:
                self.whole.shown.add(self.whole.log.ref(tensor).storage)

    # Running

    def _run(self, node: Node, side: str, other: Node | None = None) -> Any:
        """Run one node. other: the same node of the rewritten graph, whose bodies may differ."""
        if node.op == "placeholder":
            return next(self.inputs)
        if node.op == "get_attr":
            owner = self.before if side == "before" else self.after
            return self.whole.inputs.attribute(owner, str(node.target))
        args, kwargs = self._arguments(node, side)
        target: Any = node.target
        log = self.whole.log
        log.grad, log.autocasts = torch.is_grad_enabled(), autograd.autocasts()
        log.implied = bool(log.autocasts) and not calls.casts(target)
        self._check_views(node, args)
        if node.op == "call_function" and fx.has_plain_bodies(target):
            return self._inlined(node, args, other)
        if calls.is_opaque(node):
            if calls.may_write_wrappers(node):
                raise Incomplete("a write into a tensor of another class")
            result = self.whole.inputs.fresh(node, fx.tree_leaves((args, kwargs)))
            log.opaque(target, (args, kwargs), result)
            return result
        if fx.counts(target, args):
            return self._called(*fx.arange_of(target, args, kwargs))
        if node.op == "call_method":
            method = lambda first, *rest, **named: getattr(first, target)(*rest, **named)
            return calls.specialised(node, self._called(method, args, kwargs))
        if fx.is_autograd_function(target):
            return self._applied(target, args, kwargs)
        return self._called(target, args, kwargs)

    def _check_views(self, node: Node, args: Sequence[Any]) -> None:
        """What torch refuses of views, or does wrongly: detach them in place, and, in bodies of
        checkpoints, write into several at once.
        """
        views, called = self.whole.views, operators.op_name(node.target)
        if called == "detach_" and any(x is args[0] for x in views):
            raise Fault(f"`{node.name}` detaches what is a view now", node.name)
        if views and called.startswith("_foreach") and called.endswith("_"):
            storages = {self.whole.log.ref(x).storage for x in views}
            if any(self.whole.log.ref(x).storage in storages for x in tensors_of(args)):
                raise Fault(f"`{node.name}` writes into what is a view now", node.name)

    def _called(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a function or a method of torch, which may make a leaf of its own."""
        result = target(*args, **kwargs)
        inputs = list(map(id, tensors_of((args, kwargs))))
        for x in tensors_of(result):
            learns = x.requires_grad and x.layout == torch.strided and id(x) not in inputs
            if learns and not autograd.is_view(x) and autograd.is_leaf(x):
                self.whole.leaves[id(x)] = x
        return result

    def _applied(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an autograd function. What it keeps, no hook sees: maybe all of it."""
        whole, bodies, inputs = self.whole, args[:2], args[2:]
        for tensor in tensors_of((inputs, kwargs)):
            whole._save(tensor)
        first = whole.log.now
        result = target(*args, **kwargs)
        ran = whole.log.events[first:]
        if calls.is_adjoint(whole.log, ran, bodies, inputs):
            whole.derived += [x.grad_fn for x in tensors_of(result) if x.grad_fn is not None]
        else:
            for event in ran:
                event.grad = False
        return result

    def _inlined(self, node: Node, args: Sequence[Any], other: Node | None) -> Any:
        """Run the bodies of a checkpoint or a branch as part of the graph; of branches, all."""
        if other is None:
            raise Incomplete(f"`{node.name}` is run by one of the graphs alone")
        olds, news = (
            [x for x in fx.tree_leaves(self._arguments(n, side)[0]) if isinstance(x, GraphModule)]
            for n, side in ((node, "before"), (other, "after"))
        )
        inputs = args[-1] if isinstance(args[-1], (tuple, list)) else calls.after_bodies(args)
        results: list[Any] = []
        for number, (old, new) in enumerate(zip(olds, news, strict=True)):
            path = f"{self.path}{node.name}.{number}/"
            with calls.switched(node, args):
                results.append(Bodies(self.whole, old, new, path, iter(inputs)).run())
        return results[0]


def _kind(tensor: Tensor) -> str:
    strides = tuple(0 if n == 1 else s for n, s in zip(tensor.shape, tensor.stride()))
    grad = ", with gradients" if tensor.requires_grad else ""
    start = f" from {tensor.storage_offset()}" if tensor.storage_offset() else ""
    return f"{tensor.dtype} {tuple(tensor.shape)} {strides}{start} on {tensor.device}{grad}"
