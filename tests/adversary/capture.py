"""A Dynamo backend that captures once and keeps several forms of every graph: as it came, and
rewritten under several options. Which one runs is chosen from call to call.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from gdpa_inductor.backend import copy_graph
from gdpa_inductor.drawn import as_drawn
from gdpa_inductor.options import Options
from gdpa_inductor.patterns import rewrite_graph
from gdpa_inductor.verify import verified
from tests._recorder import _guard_count, text_of

PLAIN = "plain"


def judged_options(judge: str) -> dict[str, Options]:
    """The forms of `--judge on|off|both|verify`. Without that option of the package: one form,
    "off". "verify" is the form of "off" under `gdpa.verify`, whose every alarm is false there.
    """
    always = Options(profit=False)
    if "judge" not in {f.name for f in dataclasses.fields(Options)}:
        return {"off": always}
    if judge == "verify":
        return {"verify": dataclasses.replace(always, judge=False, verify=True)}
    wanted = ("off", "on") if judge == "both" else (judge,)
    return {name: dataclasses.replace(always, judge=name == "on") for name in wanted}


@dataclass
class Form:
    """One form of one graph. crash: what the pass raised, instead of a graph. as_drawn: the graph
    before the rewrite, whose dropouts draw the masks of fused calls; None where none are drawn.
    """

    gm: torch.fx.GraphModule | None
    before: str
    after: str = ""
    matches: tuple = ()
    rejections: tuple = ()
    guards_added: int = 0
    crash: Exception | None = None
    run: Callable[..., object] | None = None
    as_drawn: torch.fx.GraphModule | None = None

    @property
    def fault(self) -> str:
        """A broken promise that needs no run to be seen, or ""."""
        if self.crash is not None:
            return f"the pass raised {type(self.crash).__name__}: {self.crash}"
        if self.guards_added:
            return f"the pass added {self.guards_added} guards"
        if not self.matches and self.before != self.after:
            return "a graph without a match was changed"
        invalid = [r for r in self.rejections if r.code.name == "INVALID_REWRITE"]
        return f"INVALID_REWRITE: {invalid[0].reason}" if invalid else ""


def rewritten(gm: torch.fx.GraphModule, options: Options) -> Form:
    """A copy of the graph, rewritten under these options."""
    built, before, guards = copy_graph(gm), text_of(gm), _guard_count()
    form = Form(built, before)
    try:
        result = rewrite_graph(built, options=options)
        built.graph.lint()
        built.recompile()
    except Exception as error:
        form.crash = error
        return form
    form.after = text_of(built)
    form.matches, form.rejections = tuple(result.matches), tuple(result.rejections)
    form.guards_added = _guard_count() - guards
    if any(match.draws for match in result.matches):
        form.as_drawn = copy_graph(gm)
        as_drawn(form.as_drawn, result.matches)
    elif options.verify and result.matches:
        form.run = verified(built.forward, copy_graph(gm), result)
    return form


@dataclass
class Capture:
    """Callable as a Dynamo backend. `graphs` holds the forms of every compiled graph by name.

    before: Run the graph before the rewrite, with the masks of the current form.
    """

    options: Mapping[str, Options]
    current: str = PLAIN
    before: bool = False
    graphs: list[dict[str, Form]] = field(default_factory=list)

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
        text = text_of(gm)
        forms = {name: rewritten(gm, options) for name, options in self.options.items()}
        forms[PLAIN] = Form(gm, text, text)
        self.graphs.append(forms)

        def run(*arguments: object) -> object:
            form = forms[self.current]
            if form.crash is not None:
                raise form.crash
            if self.before:
                return (form.as_drawn or gm).forward(*arguments)
            return (form.run or form.gm.forward)(*arguments)

        return run

    def forms(self, name: str) -> list[Form]:
        return [graph[name] for graph in self.graphs]

    def matched(self, name: str) -> int:
        return sum(len(form.matches) for form in self.forms(name))

    def draws(self, name: str) -> bool:
        return any(form.as_drawn is not None for form in self.forms(name))

    def codes(self, name: str) -> list[str]:
        return [r.code.name for form in self.forms(name) for r in form.rejections]

    def fault(self, name: str) -> str:
        return next((form.fault for form in self.forms(name) if form.fault), "")

    def same(self, one: str, other: str) -> bool:
        return [f.after for f in self.forms(one)] == [f.after for f in self.forms(other)]
