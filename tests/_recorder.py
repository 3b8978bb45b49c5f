"""The one recorder: a Dynamo backend that rewrites a graph, runs it eagerly, and keeps both forms.

    recorder = Recorder()
    torch.compile(model, backend=recorder)(*inputs)
    recorder.matches, recorder.rejections, recorder.graphs[0].before, recorder.graphs[0].after

`Recorder(rewriting=False)` records only: what a graph is when nobody touches it.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch._guards import TracingContext

from gdpa_inductor.options import Options
from gdpa_inductor.patterns import rewrite_graph
from gdpa_inductor.patterns.result import INTERNAL

# Tests decide about structure and meaning; whether a region pays is a question of its own.
# GDPA_JUDGE=0 runs every test with the matcher alone.
ALWAYS = Options.make({"profit": False})

PRODUCTS = ("matmul", "bmm", "einsum", "baddbmm", "addmm", "mm", "addbmm", "linear", "__matmul__")


@dataclass(frozen=True)
class Recorded:
    """One graph: its text before and after, the calls left in it, and what the matcher said."""

    before: str
    after: str
    calls_after: Counter[str]
    matches: tuple = ()
    rejections: tuple = ()
    guards_added: int = 0

    @property
    def untouched(self) -> bool:
        return self.before == self.after

    @property
    def products_left(self) -> int:
        return sum(self.calls_after[name] for name in PRODUCTS)


@dataclass
class Recorder:
    """Callable as a Dynamo backend. `graphs` grows by one with every compile."""

    options: Options = ALWAYS
    rewriting: bool = True
    lenient: bool = False  # an error of ours is a test's failure, unless the test is about it
    graphs: list[Recorded] = field(default_factory=list)

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
        before, guards = text_of(gm), _guard_count()
        if not self.rewriting:
            self.graphs.append(Recorded(before, before, calls_of(gm)))
            return gm.forward
        result = rewrite_graph(gm, options=self.options)
        internal = [r.reason for r in result.rejections if r.reason.startswith(INTERNAL)]
        assert not internal or self.lenient, internal
        self.graphs.append(
            Recorded(
                before,
                text_of(gm),
                calls_of(gm),
                tuple(result.matches),
                tuple(result.rejections),
                _guard_count() - guards,
            )
        )
        gm.graph.lint()
        gm.recompile()
        return gm.forward

    @property
    def matches(self) -> tuple:
        return tuple(match for graph in self.graphs for match in graph.matches)

    @property
    def rejections(self) -> tuple:
        return tuple(refusal for graph in self.graphs for refusal in graph.rejections)

    @property
    def untouched(self) -> bool:
        return all(graph.untouched for graph in self.graphs)

    def why(self) -> str:
        """Every refusal on a line: what a failing test should print."""
        lines = [f"{r.code.name} at {r.location}: {r.reason}" for r in self.rejections]
        return "\n".join(lines) or "no candidate was seen"


def recorded(function: Callable, *inputs: object, **how: object) -> Recorder:
    """What compiling a function records; its result is eager's. `how` is for `torch.compile`."""
    torch._dynamo.reset()
    recorder = Recorder()
    compiled = torch.compile(function, backend=recorder, **{"fullgraph": True, **how})
    torch.testing.assert_close(compiled(*inputs), function(*inputs))
    return recorder


def text_of(gm: torch.fx.GraphModule) -> str:
    """The graph node for node, those of nested bodies (checkpoint, control flow) included."""
    return "\n".join(
        f"{name or 'top'}: {module.graph}"
        for name, module in gm.named_modules()
        if isinstance(module, torch.fx.GraphModule)
    )


def calls_of(gm: torch.fx.GraphModule) -> Counter[str]:
    """How often each function or method is called, by its short name, nested bodies included."""
    counts: Counter[str] = Counter()
    for module in gm.modules():
        if isinstance(module, torch.fx.GraphModule):
            counts.update(
                _short_name(node) for node in module.graph.nodes if node.op.startswith("call")
            )
    return counts


def _short_name(node: torch.fx.Node) -> str:
    if isinstance(node.target, str):
        return node.target
    return getattr(node.target, "__name__", str(node.target)).split(".")[0]


def _guard_count() -> int:
    """How many facts about symbolic sizes the compilation under way has assumed so far."""
    context = TracingContext.try_get()
    if context is None or context.fake_mode is None or context.fake_mode.shape_env is None:
        return 0
    shape_env = context.fake_mode.shape_env
    return len(shape_env.guards) + len(shape_env.replacements)
