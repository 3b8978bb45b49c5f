"""Every private torch symbol that the package uses: where it is, where it was checked, and why.

`SYMBOLS` is the one table: dotted name → (torch versions that have it, the reason). Private is what
has an underscore anywhere in its path, what lives in `torch.fx.experimental`, and what an object of
such a place is asked for. `tests/test_compat.py` looks each one up in the installed torch, and
`tests/compat` uses it as the package does.
"""

from __future__ import annotations

from gdpa_inductor._compat.versions import TESTED

__all__ = ["SYMBOLS"]

_Row = tuple[tuple[str, ...], str]


def _since(first: str, reason: str) -> _Row:
    """A row of what older versions lack."""
    return TESTED[TESTED.index(first) :], reason


# Owner → its symbols, and why each is needed. All versions that the tests run on have it, unless
# the row says more. What only an instance has is listed under its class, a keyword in brackets.
_ROWS: dict[str, dict[str, str | _Row]] = {
    # Dynamo: what it counts, reports and caches.
    "torch._dynamo": {
        "convert_frame.compile_lock": "held while something is compiled at run time",
        "register_backend": "makes the backend known, once for all threads",
        "config.accumulated_recompile_limit": "`recompile_limit` over all frames",
        "config.disable": "a direct call is not compiled then",
        "config.patch": "sets both limits for one run",
        "config.recompile_limit": "`explain` and `bench ceiling` must not reach it",
        "convert_frame.register_bytecode_hook": "tells which code objects a run compiled",
        "exc.FailOnRecompileLimitHit": "a direct call that cannot be compiled runs all the same",
        "exc.TorchDynamoException": "likewise",
        "device_interface.CudaInterface.get_raw_stream": (
            "the current stream of a launch, as generated code asks for it"
        ),
        "output_graph.GraphCompileReason.reason": "the text of a graph break",
        "output_graph.GraphCompileReason.user_stack": "the user's line of a graph break",
        "repro.after_dynamo.WrapBackendDebug._torchdynamo_orig_backend": (
            "the backend below Dynamo's wrapper"
        ),
        "symbolic_convert.tls": "the compile under way: its graph before DDP cuts it",
        "symbolic_convert.InstructionTranslator.output": "what a compile has captured",
        "output_graph.OutputGraph.side_effects": "what a compile does besides its result",
        "side_effects.SideEffects.store_attr_mutations": "the attributes that it sets",
        "variables.base.VariableTracker.visit": "the tensors in what is stored",
        "variables.tensor.TensorVariable.proxy": "the node of a tensor that is stored",
        "utils.get_optimize_ddp_mode": "whether DDP cuts graphs",
        "utils.counters": "counts what was matched and lowered where users look for it",
        "utils.get_compilation_metrics": "`explain` reports frames that Dynamo gave up",
        "utils._compilation_metrics.maxlen": "how many of them Dynamo keeps",
        "utils.set_compilation_metrics_limit": "all frames of a run that `explain` observes",
        "utils.graph_break_reasons": "`explain` reports graph breaks",
        "output_graph.OutputGraph._dynamo_source": "where an input comes from",
        "variables.builder.GraphArg.example": "the judge reads what small inputs hold",
    },
    "torch._dynamo.eval_frame._TorchDynamoContext": {
        "compile_wrapper": "the call of a compiled function or module",
        "cleanups": "what is called when such a call ends",
    },
    "torch._dynamo.eval_frame.OptimizedModule": {
        "_orig_mod": "the user's module below a compiled one",
        "_torchdynamo_orig_callable": "the user's function below a compiled one",
    },
    "torch._dynamo.guards": {
        "DeletedGuardManagerWrapper.id_matched_objs": "keeps deleted entries out of the limit",
        "GuardManagerWrapper.cache_entry": "the cache entry to invalidate",
        "GuardManagerWrapper.extra_state": "the cache entries of a code object",
    },
    "torch._dynamo.utils.CompilationMetrics": {
        "co_filename": "the function's file, where no line is known",
        "co_firstlineno": "the function's first line",
        "co_name": "the function of a frame",
        "fail_reason": "why a frame was given up",
        "fail_type": "tells a frame that was given up from a compiled one",
        "fail_user_frame_filename": "the file where a frame failed",
        "fail_user_frame_lineno": "the line where a frame failed",
    },
    "torch._C._dynamo.eval_frame": {
        "_debug_get_cache_entry_list": "finds the entries of a code object",
        "_ExtraState.invalidate": "drops the entries that `explain` has made",
        "_FrameAction.DEFAULT": "lets Dynamo try a skipped frame again",
        "_FrameExecStrategy": "the argument of `set_code_exec_strategy`",
        "set_code_exec_strategy": "lets Dynamo try a skipped frame again",
    },
    "torch._C._dynamo.guards": {
        "_reinterpret_tensor": "views without the dispatcher, as generated code makes them",
        "_empty_strided_cuda": "memory for a launch, as generated code asks for it",
    },
    # Graphs, and the sizes in them.
    "torch.fx.proxy": {
        "GraphAppendingTracer": "writes a computed size into a graph",
    },
    "torch.nn.Module": {
        "_compiled_call_impl": "what Module.compile has compiled",
    },
    "torch.fx._symbolic_trace": {
        "Tracer.trace": "traces without telling other threads so",
        "is_fx_symbolic_tracing": "compiled functions raise now",
    },
    "torch.fx.experimental.proxy_tensor": {
        "PythonKeyTracer": "the tracer of make_fx",
        "get_proxy_mode": "tells which node of a trace draws random numbers",
        "make_fx": "traces a region to ATen, and a formula to lower",
        "make_fx(_allow_non_fake_inputs)": "a trace may close over real tensors",
    },
    "torch.fx.experimental.symbolic_shapes": {
        "GuardOnDataDependentSymNode": "tells that a size depends on elements",
        "statically_known_true": "compares sizes without a guard",
    },
    "torch.fx.experimental.symbolic_shapes.ShapeEnv": {
        "bound_sympy": "the range of a size",
        "create_symintnode": "makes a size of an expression",
        "evaluate_guards_expression": "whether a compiled kernel holds for some tensors",
        "produce_guards_expression": "for which sizes a compiled kernel holds",
        "suppress_guards": "compares sizes without leaving a guard",
    },
    "torch.fx.experimental.sym_node.SymNode": {
        "expr": "the sympy expression of a size",
        "has_hint": "whether there is one: asking for `hint` alone may raise",
        "hint": "the value at capture",
        "is_constant": "whether a size is one number",
        "shape_env": "the owner of a symbol: its ranges and guards",
    },
    "torch.utils._sympy": {
        "functions.CeilDiv": "counts tiles of a symbolic length",
        "functions.FloorDiv": "counts tiles of a symbolic length",
        "functions.Mod": "whether a quotient of sizes leaves a rest",
        "interp.sympy_interp": "writes a computed size into a graph",
        "reference.PythonReferenceAnalysis": "the rules of `sympy_interp` for plain Python",
    },
    "torch.utils._pytree": {
        "tree_flatten": "arguments and results are nested containers",
        "tree_leaves": "the tensors of nested containers",
        "tree_map": "changes the tensors of nested containers",
    },
    # Operators, modes and tensors.
    "torch.utils._python_dispatch": {
        "_disable_current_modes": "computes on real tensors while others trace",
        "is_traceable_wrapper_subclass": "tells tensors that are made of others",
        "TorchDispatchMode": "the judge records every operator that runs",
    },
    "torch._ops": {
        "HigherOrderOperator": "operators that hold graphs",
        "OpOverload": "the operators of a graph that was exported or traced",
        "OpOverload._overloadname": "tells overloads apart in the judge's memory",
        "OpOverload._schema": "what an operator takes, and what it writes to",
        "OpOverloadPacket": "the operators of a graph of Dynamo's",
        "OpOverloadPacket._qualified_op_name": "the namespace of a packet",
    },
    "torch._library": {
        "fake_impl.FakeImplHolder.register": "fakes, without a search for their source",
        "simple_registry.singleton": "where an operator's fake is registered",
    },
    "torch._dispatch.python": {
        "enable_python_dispatcher": "traces C++ composites with symbolic sizes",
    },
    "torch._subclasses.fake_tensor": {
        "FakeTensor": "the values of graph nodes",
        "FakeTensor.constant": "the number that a fake is known to hold",
        "FakeTensor.fake_device": "the device, without a call that modes would see",
        "FakeTensor.fake_mode": "the mode to trace more under",
        "FakeTensorMode": "the judge interprets graphs on fakes of its own",
        "FakeTensorMode.shape_env": "the owner of the symbols of a mode's sizes",
    },
    "torch._subclasses.functional_tensor": {
        "dispatch_functionalize": "removes in-place calls from a trace",
        "FunctionalTensorMode": "the mode that `dispatch_functionalize` needs",
    },
    "torch.nested._internal.nested_tensor.NestedTensor": {
        "_get_max_seqlen": "reads the longest length once and stores it, as SDPA has it",
        "_lengths": "None where sequences follow each other without gaps",
        "_maybe_max_seqlen": "the length that the longest sequence was said to have",
        "_offsets": "where each sequence begins, and the end of the last",
        "_ragged_idx": "the dimension whose lengths differ",
        "_values": "the rows of all sequences",
    },
    # Autograd, and the switches of a thread.
    "torch._C._functorch": {
        "_grad_decrement_nesting": "ends `_grad_increment_nesting`",
        "_grad_increment_nesting": "Dynamo writes it for `torch.func.grad`",
        "_jvp_decrement_nesting": "ends `_jvp_increment_nesting`",
        "_jvp_increment_nesting": "Dynamo writes it for `torch.func.jvp`",
        "_vmap_decrement_nesting": "ends `_vmap_increment_nesting`",
        "_vmap_increment_nesting": "Dynamo writes it for `torch.func.vmap`",
        "get_interpreter_stack": "how many transforms an interpretation left open",
        "pop_dynamic_layer_stack": "closes them",
    },
    "torch._C._autograd": {
        "_get_current_graph_task_keep_graph": "whether a backward may run again",
        "_get_creation_meta": "a view made under `no_grad` must not be written to",
        "_pop_saved_tensors_default_hooks": "hooks of the caller are set aside",
        "_push_saved_tensors_default_hooks": "and put back",
        "_top_saved_tensors_default_hooks": "which there are",
        "_saved_tensors_hooks_disable": "Dynamo writes it around transforms",
        "_saved_tensors_hooks_enable": "Dynamo writes it around transforms",
        "CreationMeta": "how a view was made",
    },
    "torch._C": {
        "_dispatch_has_kernel_for_dispatch_key": "tells operators that others define",
        "_len_torch_dispatch_stack": "tells whether a mode sees each operator",
        "_enter_dual_level": "tells whether forward mode is on",
        "_exit_dual_level": "ends a level that an interpretation left open",
        "_set_grad_enabled": "Dynamo writes it for `torch.no_grad`",
    },
    "torch.amp.autocast_mode": {
        "_enter_autocast": "Dynamo writes it for `with torch.autocast(...)`",
        "_exit_autocast": "ends `_enter_autocast`",
    },
    # Inductor: the compiler, its IR and its templates.
    "torch._inductor": {
        "codegen.common.CSE.generate": "a scalar that is no block, so that it can bound a loop",
        "codegen.common.CSEVariable": "a variable of a kernel, with a dtype to set",
        "codegen.simd.IterationRangesRoot.cache_clear": "parts of an index, per store",
        "compile_fx.compile_fx": "compiles the rewritten graph",
        "compile_fx.compile_fx_inner": "compiles each graph under our cache key",
        "config.align_random_eager": _since("2.12", "random numbers are then eager's"),
        "config.emulate_precision_casts": "keeps roundings to 16 bits",
        "config.fallback_random": "random numbers are then eager's",
        "config.force_disable_caches": "nothing is remembered without caches",
        "config.fx_graph_cache": "nothing is remembered without caches",
        "config.max_autotune": "more configurations are timed",
        "config.max_autotune_gemm": "more configurations are timed",
        "config.patch": "sets `emulate_precision_casts` for one compile",
        "custom_graph_pass.CustomGraphPass": "the base of a pass with a uuid",
        "decomposition.select_decomp_table": "traces a formula as Inductor does",
        "graph.GraphLowering.current_node": "the FX node that is being lowered",
        "graph.GraphLowering.graph_inputs_original": "the inputs, as they are held",
        "graph.GraphLowering.sizevars": "what is known of sizes",
        "ir.Buffer.freeze_layout": "templates want operands of settled layout",
        "ir.Buffer.freeze_layout_with_exact_strides": "a buffer to add to is contiguous",
        "ir.Buffer.make_loader": "reads an operand in an element-wise kernel",
        "dependencies.MemoryDep": "what a kernel reads, and in which order",
        "ir.ComputedBuffer": "the form that a template inlines",
        "ir.DonatedBuffer": "what only one backward needs",
        "ir.ExternKernel.realize_input": "an operand as a buffer or a view of one",
        "ir.ExternKernel.require_contiguous": "results have the strides of the op's fake",
        "ir.FallbackKernel.codegen": "calls a function in place of an operator",
        "ir.FallbackKernel.create": "an operator in the generated code",
        "ir.FixedLayout": "the layout of an output",
        "ir.FlexibleLayout": "a layout that is not settled yet",
        "ir.IRNode.get_device": "where an operand is",
        "ir.IRNode.get_dtype": "the dtype of an operand",
        "ir.IRNode.get_layout": "whether its layout is settled",
        "ir.IRNode.get_size": "the size of an operand",
        "ir.IRNode.realize": "makes a buffer of an operand",
        "ir.Pointwise": "an element-wise kernel",
        "ir.Pointwise.get_reads": "the buffers that an operand is computed from",
        "ir.Pointwise.inner_fn_opcount": "whether an operand is only a cast",
        "ir.TensorBox": "an operand",
        "ir.is_storage_and_layout": "whether an operand is in memory",
        "ir.TensorBox.create": "makes an operand of what a call gives",
        "ir.TritonTemplateBuffer.subgraph_inps": "sizes that inlined code names",
        "inductor_prims.seed": "the seed of a dropout, where Inductor draws its own",
        "inductor_prims.seeds": "what seeds become where a backward draws them again",
        "list_options": "tells a misspelt option with the nearest name",
        "lowering.empty_strided": "a buffer for a kernel to write to",
        "lowering.fallback_handler": "calls an operator from the generated code",
        "lowering.full": "zeros",
        "lowering.lowerings": "lowers an ATen operator",
        "lowering.process_subgraph_nodes": "lowers a formula op by op",
        "lowering.register_lowering": "lowers gdpa::attention and its backward",
        "lowering.to_dtype": "copies an operand in one pass with a cast",
        "lowering.to_device": "moves an operand between the products to the GPU",
        "runtime.cache_dir_utils.cache_dir": "verdicts and kernels lie there",
        "async_compile.maybe_warm_pool": "start them as Inductor does",
        "async_compile.get_compile_threads": "how many processes compile",
        "async_compile.AsyncCompile.use_process_pool": "are there processes to compile in",
        "async_compile.AsyncCompile.process_pool": "CuTe kernels are compiled there",
        "virtualized.NullKernelHandler": "what is there while no kernel is written",
        "virtualized.ops": "the operations of a kernel's inner function",
        "virtualized.OpsValue": "a value with arithmetic operators",
        "virtualized.V": "the graph that is being lowered, and the kernel being written",
    },
    "torch._inductor.codegen.triton.TritonKernel": {
        "compute": "where a scalar is computed",
        "cse": "names what is computed",
        "kexpr": "prints a size as the kernel's code",
        "rename_indexing": "makes a symbolic size an argument of the kernel",
    },
    "torch._inductor.sizevars.SizeVarAllocator": {
        "statically_known_equals": "whether two sizes are equal",
        "optimization_hint": "a likely size, to choose a configuration by",
    },
    "torch._inductor.select_algorithm": {
        "autotune_select_algorithm": "times the configurations",
        "extern_kernels": "a name that is taken there must be freed first",
        "ExternKernelChoice": "a CuTe kernel that is timed beside it",
        "ExternKernelChoice.bind": "gives the choice its operands",
        "SymbolicGridFn": "a grid of symbolic size",
        "TritonTemplate": "our kernels as choices of Inductor",
        "TritonTemplate.__init__(always_freeze_layout)": _since(
            "2.12", "it may defer layouts; ours are settled"
        ),
        "TritonTemplate.generate(triton_meta)": "sets options of Triton's compiler",
        "TritonTemplate.kernel_type": "writes what is fused at each store",
        "TritonTemplate.maybe_append_choice": "renders one configuration",
        "TritonTemplate.template": "the jinja template, for its globals",
        "TritonTemplateKernel.set_subgraph_body": "where a store is written",
    },
    # The rest.
    "torch": {
        "_guards.CompileContext.current_compile_id": "tells recompiles of a frame",
        "_guards.CompileId.frame_id": "tells recompiles of a frame",
        "_guards.Source.name": "names an input in a report",
        "_guards.tracing": "enters a `TracingContext`",
        "_guards.TracingContext": "compile_fx wants one where there is no Dynamo",
        "_logging.trace_structured": "leaves the report for tlparse",
        "_TorchCompileInductorWrapper": "checks the options of torch.compile",
        "_TorchCompileWrapper.compiler_fn": "the backend below torch.compile's wrapper",
        "_C._get_mkldnn_enabled": "whether activations may be oneDNN's",
        "_C._set_mkldnn_enabled": "`torch.backends.mkldnn.flags` warns of Intel's GPUs",
        "_VF._unpack_dual": "the tangent of a tensor, from whatever level",
        "autograd.grad_mode._enter_inference_mode": "Dynamo writes it for inference mode",
        "autograd.grad_mode._exit_inference_mode": "ends `_enter_inference_mode`",
        "Tensor._base": "`verify` keeps what an operand is a view of",
        "Tensor._indices": "`indices` refuses a tensor that is not coalesced",
        "nn.parallel.DistributedDataParallel._get_active_ddp_module": "whether DDP cuts graphs",
        "Tensor._is_view": "whether autograd follows a tensor as a view",
        "Tensor._values": "`values` refuses a tensor that is not coalesced",
        "Tensor._version": "how many writes autograd has seen",
        "UntypedStorage._cdata": "tells storages apart, those of fakes too",
    },
}

SYMBOLS: dict[str, _Row] = {
    f"{owner}.{name}": (TESTED, row) if isinstance(row, str) else row
    for owner, rows in _ROWS.items()
    for name, row in rows.items()
}
