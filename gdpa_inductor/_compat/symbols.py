"""Every private torch symbol that the package uses: where it is, where it was checked, and why.

`SYMBOLS` is the one table: dotted name → (torch versions it was checked on, the reason). Private is
what has an underscore anywhere in its path, what lives in `torch.fx.experimental`, and what an
object of such a place is asked for. A test looks each one up in the installed torch.
"""

from __future__ import annotations

__all__ = ["SYMBOLS"]

_BOTH = "2.11, 2.13"
_Rows = dict[str, tuple[str, str]]

# Owner → its symbols. What only an instance has is listed under its class, a keyword in brackets.
_ROWS: dict[str, _Rows] = {
    # Dynamo: what it counts, reports and caches.
    "torch._dynamo": {
        "config.accumulated_recompile_limit": (_BOTH, "`recompile_limit` over all frames"),
        "config.patch": (_BOTH, "sets both limits for one run"),
        "config.recompile_limit": (_BOTH, "`explain` and `bench ceiling` must not reach it"),
        "convert_frame.register_bytecode_hook": (_BOTH, "tells which code objects a run compiled"),
        "device_interface.CudaInterface.get_raw_stream": (
            _BOTH,
            "the current stream of a launch, as generated code asks for it",
        ),
        "output_graph.GraphCompileReason.reason": (_BOTH, "the text of a graph break"),
        "output_graph.GraphCompileReason.user_stack": (_BOTH, "the user's line of a graph break"),
        "repro.after_dynamo.WrapBackendDebug._torchdynamo_orig_backend": (
            _BOTH,
            "the backend below Dynamo's wrapper",
        ),
        "symbolic_convert.tls": (_BOTH, "the compile under way: its graph before DDP cuts it"),
        "symbolic_convert.InstructionTranslator.output": (_BOTH, "what a compile has captured"),
        "utils.get_optimize_ddp_mode": (_BOTH, "whether DDP cuts graphs"),
        "maybe_mark_dynamic": (_BOTH, "lengths that vary compile once in a benchmark"),
        "utils.counters": (_BOTH, "counts what was matched and lowered where users look for it"),
        "utils.get_compilation_metrics": (_BOTH, "`explain` reports frames that Dynamo gave up"),
        "utils.graph_break_reasons": (_BOTH, "`explain` reports graph breaks"),
        "output_graph.OutputGraph._dynamo_source": (_BOTH, "where an input comes from"),
        "variables.builder.GraphArg.example": (_BOTH, "the judge reads what small inputs hold"),
    },
    "torch._dynamo.eval_frame.OptimizedModule": {
        "_orig_mod": (_BOTH, "the user's module below a compiled one"),
        "_torchdynamo_orig_callable": (_BOTH, "the user's function below a compiled one"),
    },
    "torch._dynamo.guards": {
        "DeletedGuardManagerWrapper.id_matched_objs": (
            _BOTH,
            "keeps deleted entries out of the limit",
        ),
        "GuardManagerWrapper.cache_entry": (_BOTH, "the cache entry to invalidate"),
        "GuardManagerWrapper.extra_state": (_BOTH, "the cache entries of a code object"),
    },
    "torch._dynamo.utils.CompilationMetrics": {
        "co_filename": (_BOTH, "the function's file, where no line is known"),
        "co_firstlineno": (_BOTH, "the function's first line"),
        "co_name": (_BOTH, "the function of a frame"),
        "fail_reason": (_BOTH, "why a frame was given up"),
        "fail_type": (_BOTH, "tells a frame that was given up from a compiled one"),
        "fail_user_frame_filename": (_BOTH, "the file where a frame failed"),
        "fail_user_frame_lineno": (_BOTH, "the line where a frame failed"),
    },
    "torch._C._dynamo.eval_frame": {
        "_debug_get_cache_entry_list": (_BOTH, "finds the entries of a code object"),
        "_ExtraState.invalidate": (_BOTH, "drops the entries that `explain` has made"),
        "_FrameAction.DEFAULT": (_BOTH, "lets Dynamo try a skipped frame again"),
        "_FrameExecStrategy": (_BOTH, "the argument of `set_code_exec_strategy`"),
        "set_code_exec_strategy": (_BOTH, "lets Dynamo try a skipped frame again"),
    },
    "torch._C._dynamo.guards": {
        "_reinterpret_tensor": (
            _BOTH,
            "views without the dispatcher, as generated code makes them",
        ),
        "_empty_strided_cuda": (_BOTH, "memory for a launch, as generated code asks for it"),
    },
    # Graphs, and the sizes in them.
    "torch.fx.proxy": {
        "GraphAppendingTracer": (_BOTH, "writes a computed size into a graph"),
    },
    "torch.fx.experimental.proxy_tensor": {
        "get_proxy_mode": (_BOTH, "tells which node of a trace draws random numbers"),
        "make_fx": (_BOTH, "traces a region to ATen, and a formula to lower"),
        "make_fx(_allow_non_fake_inputs)": (_BOTH, "a trace may close over real tensors"),
    },
    "torch.fx.experimental.symbolic_shapes": {
        "GuardOnDataDependentSymNode": (_BOTH, "tells that a size depends on elements"),
        "statically_known_true": (_BOTH, "compares sizes without a guard"),
    },
    "torch.fx.experimental.symbolic_shapes.ShapeEnv": {
        "bound_sympy": (_BOTH, "the range of a size"),
        "create_symintnode": (_BOTH, "makes a size of an expression"),
        "evaluate_guards_expression": (_BOTH, "whether a compiled kernel holds for some tensors"),
        "produce_guards_expression": (_BOTH, "for which sizes a compiled kernel holds"),
        "suppress_guards": (_BOTH, "compares sizes without leaving a guard"),
    },
    "torch.fx.experimental.sym_node.SymNode": {
        "expr": (_BOTH, "the sympy expression of a size"),
        "has_hint": (_BOTH, "whether there is one: asking for `hint` alone may raise"),
        "hint": (_BOTH, "the value at capture"),
        "is_constant": (_BOTH, "whether a size is one number"),
        "shape_env": (_BOTH, "the owner of a symbol: its ranges and guards"),
    },
    "torch.utils._sympy": {
        "functions.CeilDiv": (_BOTH, "counts tiles of a symbolic length"),
        "functions.FloorDiv": (_BOTH, "counts tiles of a symbolic length"),
        "interp.sympy_interp": (_BOTH, "writes a computed size into a graph"),
        "reference.PythonReferenceAnalysis": (
            _BOTH,
            "the rules of `sympy_interp` for plain Python",
        ),
    },
    "torch.utils._pytree": {
        "tree_flatten": (_BOTH, "arguments and results are nested containers"),
        "tree_leaves": (_BOTH, "the tensors of nested containers"),
        "tree_map": (_BOTH, "changes the tensors of nested containers"),
    },
    # Operators, modes and tensors.
    "torch.utils._python_dispatch": {
        "_disable_current_modes": (_BOTH, "computes on real tensors while others trace"),
        "is_traceable_wrapper_subclass": (_BOTH, "tells tensors that are made of others"),
        "TorchDispatchMode": (_BOTH, "the judge records every operator that runs"),
    },
    "torch._ops": {
        "HigherOrderOperator": (_BOTH, "operators that hold graphs"),
        "OpOverload": (_BOTH, "the operators of a graph that was exported or traced"),
        "OpOverload._overloadname": (_BOTH, "tells overloads apart in the judge's memory"),
        "OpOverload._schema": (_BOTH, "what an operator takes, and what it writes to"),
        "OpOverloadPacket": (_BOTH, "the operators of a graph of Dynamo's"),
        "OpOverloadPacket._qualified_op_name": (_BOTH, "the namespace of a packet"),
    },
    "torch._library": {
        "fake_impl.FakeImplHolder.register": (_BOTH, "fakes, without a search for their source"),
        "simple_registry.singleton": (_BOTH, "where an operator's fake is registered"),
    },
    "torch._dispatch.python": {
        "enable_python_dispatcher": (_BOTH, "traces C++ composites with symbolic sizes"),
    },
    "torch._subclasses.fake_tensor": {
        "FakeTensor": (_BOTH, "the values of graph nodes"),
        "FakeTensor.constant": (_BOTH, "the number that a fake is known to hold"),
        "FakeTensor.fake_device": (_BOTH, "the device, without a call that modes would see"),
        "FakeTensor.fake_mode": (_BOTH, "the mode to trace more under"),
        "FakeTensorMode": (_BOTH, "the judge interprets graphs on fakes of its own"),
        "FakeTensorMode.shape_env": (_BOTH, "the owner of the symbols of a mode's sizes"),
    },
    "torch._subclasses.functional_tensor": {
        "dispatch_functionalize": (_BOTH, "removes in-place calls from a trace"),
        "FunctionalTensorMode": (_BOTH, "the mode that `dispatch_functionalize` needs"),
    },
    "torch.nested._internal.nested_tensor.NestedTensor": {
        "_lengths": (_BOTH, "None where sequences follow each other without gaps"),
        "_ragged_idx": (_BOTH, "the dimension whose lengths differ"),
        "_values": (_BOTH, "the rows of all sequences"),
    },
    # Autograd, and the switches of a thread.
    "torch._C._functorch": {
        "_grad_decrement_nesting": (_BOTH, "ends `_grad_increment_nesting`"),
        "_grad_increment_nesting": (_BOTH, "Dynamo writes it for `torch.func.grad`"),
        "_jvp_decrement_nesting": (_BOTH, "ends `_jvp_increment_nesting`"),
        "_jvp_increment_nesting": (_BOTH, "Dynamo writes it for `torch.func.jvp`"),
        "_vmap_decrement_nesting": (_BOTH, "ends `_vmap_increment_nesting`"),
        "_vmap_increment_nesting": (_BOTH, "Dynamo writes it for `torch.func.vmap`"),
        "get_interpreter_stack": (_BOTH, "how many transforms an interpretation left open"),
        "pop_dynamic_layer_stack": (_BOTH, "closes them"),
    },
    "torch._C._autograd": {
        "_get_current_graph_task_keep_graph": (_BOTH, "whether a backward may run again"),
        "_get_creation_meta": (_BOTH, "a view made under `no_grad` must not be written to"),
        "_pop_saved_tensors_default_hooks": (_BOTH, "hooks of the caller are set aside"),
        "_push_saved_tensors_default_hooks": (_BOTH, "and put back"),
        "_top_saved_tensors_default_hooks": (_BOTH, "which there are"),
        "_saved_tensors_hooks_disable": (_BOTH, "Dynamo writes it around transforms"),
        "_saved_tensors_hooks_enable": (_BOTH, "Dynamo writes it around transforms"),
        "CreationMeta": (_BOTH, "how a view was made"),
    },
    "torch._C": {
        "_dispatch_has_kernel_for_dispatch_key": (_BOTH, "tells operators that others define"),
        "_enter_dual_level": (_BOTH, "tells whether forward mode is on"),
        "_exit_dual_level": (_BOTH, "ends a level that an interpretation left open"),
        "_set_grad_enabled": (_BOTH, "Dynamo writes it for `torch.no_grad`"),
    },
    "torch._functorch.config": {
        "patch": (_BOTH, "sets `donated_buffer` for one compile"),
        "donated_buffer": (_BOTH, "benchmarks run a backward twice over one forward"),
    },
    "torch.amp.autocast_mode": {
        "_enter_autocast": (_BOTH, "Dynamo writes it for `with torch.autocast(...)`"),
        "_exit_autocast": (_BOTH, "ends `_enter_autocast`"),
    },
    # Inductor: the compiler, its IR and its templates.
    "torch._inductor": {
        "codegen.common.CSE.generate": (
            _BOTH,
            "a scalar that is never a block, so that it can bound a loop",
        ),
        "codegen.common.CSEVariable": (_BOTH, "a variable of a kernel, with a dtype to set"),
        "codegen.simd.IterationRangesRoot.cache_clear": (_BOTH, "parts of an index, per store"),
        "compile_fx.compile_fx": (_BOTH, "compiles the rewritten graph"),
        "compile_fx.compile_fx_inner": (_BOTH, "compiles each graph under our cache key"),
        "config.emulate_precision_casts": (_BOTH, "keeps roundings to 16 bits"),
        "config.force_disable_caches": (_BOTH, "nothing is remembered without caches"),
        "config.fx_graph_cache": (_BOTH, "nothing is remembered without caches"),
        "config.max_autotune": (_BOTH, "more configurations are timed"),
        "config.max_autotune_gemm": (_BOTH, "more configurations are timed"),
        "config.patch": (_BOTH, "sets `emulate_precision_casts` for one compile"),
        "custom_graph_pass.CustomGraphPass": (_BOTH, "the base of a pass with a uuid"),
        "decomposition.select_decomp_table": (_BOTH, "traces a formula as Inductor does"),
        "graph.GraphLowering.current_node": (_BOTH, "the FX node that is being lowered"),
        "graph.GraphLowering.graph_inputs_original": (_BOTH, "the inputs, as they are held"),
        "graph.GraphLowering.sizevars": (_BOTH, "what is known of sizes"),
        "ir.Buffer.freeze_layout": (_BOTH, "templates want operands of settled layout"),
        "ir.Buffer.freeze_layout_with_exact_strides": (_BOTH, "a buffer to add to is contiguous"),
        "ir.Buffer.make_loader": (_BOTH, "reads an operand in an element-wise kernel"),
        "dependencies.MemoryDep": (_BOTH, "what a kernel reads, and in which order"),
        "ir.ComputedBuffer": (_BOTH, "the form that a template inlines"),
        "ir.DonatedBuffer": (_BOTH, "what only one backward needs"),
        "ir.ExternKernel.realize_input": (_BOTH, "an operand as a buffer or a view of one"),
        "ir.ExternKernel.require_contiguous": (_BOTH, "results have the strides of the op's fake"),
        "ir.FallbackKernel.codegen": (_BOTH, "calls a function in place of an operator"),
        "ir.FallbackKernel.create": (_BOTH, "an operator in the generated code"),
        "ir.FixedLayout": (_BOTH, "the layout of an output"),
        "ir.FlexibleLayout": (_BOTH, "a layout that is not settled yet"),
        "ir.IRNode.get_device": (_BOTH, "where an operand is"),
        "ir.IRNode.get_dtype": (_BOTH, "the dtype of an operand"),
        "ir.IRNode.get_layout": (_BOTH, "whether its layout is settled"),
        "ir.IRNode.get_size": (_BOTH, "the size of an operand"),
        "ir.IRNode.realize": (_BOTH, "makes a buffer of an operand"),
        "ir.Pointwise": (_BOTH, "an element-wise kernel"),
        "ir.Pointwise.get_reads": (_BOTH, "the buffers that an operand is computed from"),
        "ir.Pointwise.inner_fn_opcount": (_BOTH, "whether an operand is only a cast"),
        "ir.TensorBox": (_BOTH, "an operand"),
        "ir.is_storage_and_layout": (_BOTH, "whether an operand is in memory"),
        "ir.TensorBox.create": (_BOTH, "makes an operand of what a call gives"),
        "ir.TritonTemplateBuffer.subgraph_inps": (_BOTH, "sizes that inlined code names"),
        "list_options": (_BOTH, "tells a misspelt option with the nearest name"),
        "lowering.empty_strided": (_BOTH, "a buffer for a kernel to write to"),
        "lowering.fallback_handler": (_BOTH, "calls an operator from the generated code"),
        "lowering.full": (_BOTH, "zeros"),
        "lowering.lowerings": (_BOTH, "lowers an ATen operator"),
        "lowering.process_subgraph_nodes": (_BOTH, "lowers a formula op by op"),
        "lowering.register_lowering": (_BOTH, "lowers gdpa::attention and its backward"),
        "lowering.to_dtype": (_BOTH, "copies an operand in one pass with a cast"),
        "lowering.to_device": (_BOTH, "moves an operand between the products to the GPU"),
        "runtime.cache_dir_utils.cache_dir": (_BOTH, "verdicts and kernels lie there"),
        "async_compile.maybe_warm_pool": (_BOTH, "start them as Inductor does"),
        "async_compile.get_compile_threads": (_BOTH, "how many processes compile"),
        "async_compile.AsyncCompile.use_process_pool": (_BOTH, "are there processes to compile in"),
        "async_compile.AsyncCompile.process_pool": (_BOTH, "CuTe kernels are compiled there"),
        "utils.fresh_cache": (_BOTH, "a compile that is timed finds nothing in caches"),
        "virtualized.NullKernelHandler": (_BOTH, "what is there while no kernel is written"),
        "virtualized.ops": (_BOTH, "the operations of a kernel's inner function"),
        "virtualized.OpsValue": (_BOTH, "a value with arithmetic operators"),
        "virtualized.V": (_BOTH, "the graph that is being lowered, and the kernel being written"),
    },
    "torch._inductor.runtime.triton_heuristics.CachingAutotuner": {
        "benchmark_all_configs": (_BOTH, "compares kernels by time while other processes wait"),
    },
    "torch._inductor.codegen.triton.TritonKernel": {
        "compute": (_BOTH, "where a scalar is computed"),
        "cse": (_BOTH, "names what is computed"),
        "kexpr": (_BOTH, "prints a size as the kernel's code"),
        "rename_indexing": (_BOTH, "makes a symbolic size an argument of the kernel"),
    },
    "torch._inductor.sizevars.SizeVarAllocator": {
        "statically_known_equals": (_BOTH, "whether two sizes are equal"),
        "optimization_hint": (_BOTH, "a likely size, to choose a configuration by"),
    },
    "torch._inductor.select_algorithm": {
        "autotune_select_algorithm": (_BOTH, "times the configurations"),
        "extern_kernels": (_BOTH, "a name that is taken there must be freed first"),
        "ExternKernelChoice": (_BOTH, "a CuTe kernel that is timed beside it"),
        "ExternKernelChoice.bind": (_BOTH, "gives the choice its operands"),
        "SymbolicGridFn": (_BOTH, "a grid of symbolic size"),
        "TritonTemplate": (_BOTH, "our kernels as choices of Inductor"),
        "TritonTemplate.__init__(always_freeze_layout)": (
            "2.13",
            "2.13 may defer layouts; ours are settled",
        ),
        "TritonTemplate.generate(triton_meta)": (_BOTH, "sets options of Triton's compiler"),
        "TritonTemplate.kernel_type": (_BOTH, "writes what is fused at each store"),
        "TritonTemplate.maybe_append_choice": (_BOTH, "renders one configuration"),
        "TritonTemplate.template": (_BOTH, "the jinja template, for its globals"),
        "TritonTemplateKernel.set_subgraph_body": (_BOTH, "where a store is written"),
    },
    # The rest.
    "torch": {
        "_guards.CompileContext.current_compile_id": (_BOTH, "tells recompiles of a frame"),
        "_guards.CompileId.frame_id": (_BOTH, "tells recompiles of a frame"),
        "_guards.Source.name": (_BOTH, "names an input in a report"),
        "_guards.tracing": (_BOTH, "enters a `TracingContext`"),
        "_guards.TracingContext": (_BOTH, "compile_fx wants one where there is no Dynamo"),
        "_logging.trace_structured": (_BOTH, "leaves the report for tlparse"),
        "_TorchCompileInductorWrapper": (_BOTH, "checks the options of torch.compile"),
        "_TorchCompileWrapper.compiler_fn": (_BOTH, "the backend below torch.compile's wrapper"),
        "_C._get_mkldnn_enabled": (_BOTH, "whether activations may be oneDNN's"),
        "_C._set_mkldnn_enabled": (_BOTH, "`torch.backends.mkldnn.flags` warns of Intel's GPUs"),
        "_VF._unpack_dual": (_BOTH, "the tangent of a tensor, from whatever level"),
        "autograd.grad_mode._enter_inference_mode": (_BOTH, "Dynamo writes it for inference mode"),
        "autograd.grad_mode._exit_inference_mode": (_BOTH, "ends `_enter_inference_mode`"),
        "Tensor._indices": (_BOTH, "`indices` refuses a tensor that is not coalesced"),
        "nn.parallel.DistributedDataParallel._get_active_ddp_module": (
            _BOTH,
            "whether DDP cuts graphs",
        ),
        "Tensor._is_view": (_BOTH, "whether autograd follows a tensor as a view"),
        "Tensor._values": (_BOTH, "`values` refuses a tensor that is not coalesced"),
        "Tensor._version": (_BOTH, "how many writes autograd has seen"),
        "UntypedStorage._cdata": (_BOTH, "tells storages apart, those of fakes too"),
    },
}

SYMBOLS: _Rows = {
    f"{owner}.{name}": row for owner, rows in _ROWS.items() for name, row in rows.items()
}
